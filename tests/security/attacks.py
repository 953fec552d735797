"""Attacks: programs that try to escape from a worker. Each sets `hurt` to evidence if it succeeds.

The scope of a program contains: the standard modules that `attacker` imports; `dir`, a directory that it may change;
`secret`, a file that it must not read; `port`, a listening TCP port, and `unix`, a listening socket, on this machine;
`victim`, the id of a process of the same user; `call(number, *arguments)`, a raw system call that raises OSError; and
`fd_is_open(fd)`. Without a sandbox, the programs harm nothing but `dir` and `victim`.
"""

NETWORK = {
    "tcp_connect": "s = socket.create_connection(('127.0.0.1', port), 1); hurt = s.getpeername()",
    "tcp_listen": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); hurt = s.getsockname()",
    "udp_send": "s = socket.socket(type=socket.SOCK_DGRAM); hurt = s.sendto(b'x', ('127.0.0.1', port))",
    "udp6_socket": "hurt = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).fileno()",
    "unix_connect": "s = socket.socket(socket.AF_UNIX); s.connect(unix); hurt = 'connected'",
    "unix_abstract": "s = socket.socket(socket.AF_UNIX); s.bind('\\0graders-attack'); hurt = 'bound'",
    "socketpair": "a, b = socket.socketpair(); a.send(b'x'); hurt = b.recv(1)",
    "netlink": "hurt = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno()",
    "vsock": "hurt = socket.socket(40, socket.SOCK_STREAM).fileno()",
    "raw_socket": "hurt = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()",
    "packet_socket": "hurt = socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno()",
    "alg_socket": "hurt = socket.socket(38, socket.SOCK_SEQPACKET).fileno()",
    "raw_socket_call": "hurt = ('fd', call(41, 2, 1, 0))",
    "interfaces": "hurt = [n for _, n in socket.if_nameindex()]",
    "host_name": "hurt = socket.gethostname()",
}

FILES = {
    "read_passwd": "hurt = open('/etc/passwd').read(20)",
    "read_secret": "hurt = open(secret).read()",
    "read_own_source": "hurt = open(os.__file__).read(20)",
    "read_openat": "hurt = os.read(os.open('passwd', os.O_RDONLY, dir_fd=os.open('/etc', os.O_RDONLY)), 9)",
    "read_openat2": "hurt = ('fd', call(437, -100, b'/etc/passwd', struct.pack('3Q', 0, 0, 0), 24))",
    "read_raw_open": "hurt = ('fd', call(2, b'/etc/passwd', 0, 0))",
    "read_path_fd": "hurt = ('fd', os.open('/etc', os.O_PATH))",
    "list_root": "hurt = os.listdir('/')",
    "list_dir": "hurt = os.listdir(dir)",
    "scan_home": "hurt = [e.name for e in os.scandir(os.path.expanduser('~'))]",
    "stat_passwd": "hurt = os.stat('/etc/passwd').st_size",
    "access_passwd": "hurt = os.access('/etc/passwd', os.R_OK) or None",
    "readlink_exe": "hurt = os.readlink('/proc/self/exe')",
    "statvfs": "hurt = os.statvfs('/').f_blocks",
    "working_directory": "hurt = os.getcwd()",
    "change_directory": "os.chdir('/etc'); hurt = 'moved'",
    "name_to_handle": "hurt = call(303, -100, b'/etc/passwd', (ctypes.c_char * 200)(*struct.pack('I', 128)), ctypes.byref(ctypes.c_int()), 0) == 0",  # noqa: E501
    "mmap_file": "f = os.open(secret, os.O_RDONLY); hurt = mmap.mmap(f, 4, prot=mmap.PROT_READ)[:4]",
    "inotify": "hurt = ('fd', call(294, 0))",
    "extended_attributes": "os.setxattr(dir, 'user.x', b'1'); hurt = os.listxattr(dir)",
    "write_new": "open(dir + '/new', 'w').write('x'); hurt = 'written'",
    "write_tmp": "import tempfile; f = tempfile.TemporaryFile(dir=dir); f.write(b'x'); hurt = 'written'",
    "write_append": "open(secret + '.log', 'a').close(); hurt = 'created'",
    "write_shm": "p = '/dev/shm/graders-attack'; os.close(os.open(p, os.O_CREAT | 1)); os.unlink(p); hurt = p",
    "make_directory": "os.mkdir(dir + '/sub'); hurt = 'made'",
    "make_fifo": "os.mkfifo(dir + '/fifo'); hurt = 'made'",
    "make_device": "os.mknod(dir + '/node', 0o600); hurt = 'made'",
    "symlink": "os.symlink('/etc/passwd', dir + '/link'); hurt = 'linked'",
    "hard_link": "os.link(secret, dir + '/hard'); hurt = 'linked'",
    "rename": "open(dir + '/a', 'w').close(); os.rename(dir + '/a', dir + '/b'); hurt = 'renamed'",
    "unlink": "os.unlink(dir + '/bait'); hurt = 'deleted'",
    "change_mode": "os.chmod(dir, 0o777); hurt = 'changed'",
    "change_owner": "os.chown(dir, os.getuid(), os.getgid()); hurt = 'changed'",
    "change_times": "os.utime(dir, (0, 0)); hurt = 'changed'",
    "truncate": "os.truncate(dir + '/bait2', 0); hurt = 'truncated'",
    "chroot": "os.chroot(dir); hurt = 'moved'",
    "mount": "c = ctypes.CDLL(None); hurt = c.mount(b'x', dir.encode(), b'tmpfs', 0, None) == 0 or None; c.umount(dir.encode())",  # noqa: E501
}

PROCESSES = {
    "fork": "p = os.fork()\nif p == 0: os._exit(0)\nhurt = p",
    "vfork_call": "hurt = ('clone', call(56, 17, 0, 0, 0, 0)) if (p := os.getpid()) else None\nif os.getpid() != p: os._exit(0)",  # noqa: E501
    "clone3_call": "hurt = ('clone', call(435, struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0), 64))\nif hurt[1] == 0: os._exit(0)",  # noqa: E501
    "thread": "t = threading.Thread(target=lambda: None); t.start(); t.join(); hurt = 'threaded'",
    "system": "hurt = os.system('true') == 0 or None",
    "popen": "hurt = subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout",
    "spawn": "hurt = os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "exec": "p = os.fork()\nif p == 0: os.execv('/bin/true', ['true'])\nhurt = os.waitpid(p, 0)[1] == 0 or None",
    "exec_memfd": "f = os.memfd_create('x'); os.write(f, open('/bin/true', 'rb').read())\nhurt = os.waitpid(os.posix_spawn(f'/proc/self/fd/{f}', ['x'], {}), 0)",  # noqa: E501
    "new_session": "os.setsid() if os.getpid() != os.getsid(0) else None; hurt = 'session', os.getsid(0)",
    "new_user_namespace": "ctypes.CDLL(None).unshare(0x10000000) == 0 or call(272, 0x10000000); hurt = 'entered'",
    "new_mount_namespace": "call(272, 0x00020000); hurt = 'entered'",
    "join_namespace": "hurt = call(308, os.open('/proc/self/ns/net', os.O_RDONLY), 0) == 0 or None",
    "become_root": "os.setuid(0); hurt = os.getuid() == 0 or None",
    "set_groups": "os.setgroups([0]); hurt = os.getgroups()",
    "raise_priority": "os.setpriority(os.PRIO_PROCESS, victim, 5); hurt = 'changed'",
    "realtime": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); hurt = 'changed'",
    "pin_victim": "os.sched_setaffinity(victim, {0}); hurt = 'pinned'",
    "raise_limit": "s, h = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (h, h)); hurt = h",  # noqa: E501
    "limit_victim": "resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0)); hurt = 'limited'",
    "rename_process": "hurt = ctypes.CDLL(None).prctl(15, b'innocent', 0, 0, 0) == 0 or None",
    "subreaper": "hurt = ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0 or None",
    "personality": "hurt = ('was', call(135, 0x0040000))",
}

SIGNALS_AND_MEMORY = {
    "signal_victim": "os.kill(victim, 0); hurt = 'reached'",
    "stop_victim": "os.kill(victim, signal.SIGCONT); hurt = 'reached'",
    "signal_parent": "os.kill(os.getppid(), 0); hurt = 'reached'",
    "signal_group": "os.killpg(os.getpgid(0), 0); hurt = 'reached'",
    "signal_all": "os.kill(-1, 0); hurt = 'reached'",
    "queue_signal": "hurt = ctypes.CDLL(None).sigqueue(victim, 0, None) == 0 or None",
    "tkill": "call(200, victim, 0); hurt = 'reached'",
    "pidfd_open": "hurt = os.pidfd_open(victim)",
    "pidfd_parent": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0); hurt = 'reached'",
    "ptrace_victim": "call(101, 0x4206, victim, 0, 0); hurt = 'traced'; call(101, 17, victim, 0, 0)",
    "ptrace_me": "call(101, 0, 0, 0, 0); hurt = 'traced'",
    "read_memory": "b = ctypes.create_string_buffer(8); v = struct.pack('2Q', ctypes.addressof(b), 8)\nhurt = call(310, os.getppid(), v, 1, struct.pack('2Q', id(None), 8), 1, 0)",  # noqa: E501
    "read_victim_memory": "hurt = open(f'/proc/{victim}/mem', 'rb').fileno()",
    "read_victim_environment": "hurt = open(f'/proc/{victim}/environ').read() or None",
    "read_parent_environment": "hurt = open(f'/proc/{os.getppid()}/environ').read(10)",
    "read_own_memory_file": "f = open('/proc/self/mem', 'rb', 0); f.seek(id(None)); hurt = f.read(8)",
    "read_maps": "hurt = open('/proc/self/maps').read(20)",
    "list_processes": "hurt = [p for p in os.listdir('/proc') if p.isdigit()]",
    "own_io_signal": "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, victim); hurt = fcntl.fcntl(r, fcntl.F_GETOWN)",  # noqa: E501
    "kcmp": "hurt = ('same', call(312, os.getpid(), victim, 1, 0, 0))",
    "process_madvise": "hurt = ('fd', call(434, victim, 0))",
    "migrate_pages": "hurt = ('left', call(256, victim, 64, struct.pack('Q', 1), struct.pack('Q', 1)))",
}

KERNEL = {
    "io_uring": "hurt = ('fd', call(425, 4, (ctypes.c_char * 120)()))",
    "userfaultfd": "hurt = ('fd', call(323, 1))",
    "perf_event": "hurt = ('fd', call(298, struct.pack('IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0))",
    "bpf": "hurt = ('fd', call(321, 0, struct.pack('4I', 2, 4, 4, 1) + bytes(56), 72))",
    "keyctl": "hurt = ('keyring', call(250, 0, -3, 1))",
    "add_key": "hurt = ('key', call(248, b'user', b'graders', b'x', 1, -2))",
    "memfd": "f = os.memfd_create('x'); hurt = os.write(f, b'x' * 4096)",
    "memfd_secret": "hurt = ('fd', call(447, 0))",
    "shared_memory": "i = call(29, 0, 4096, 0o1600); call(31, i, 0, 0); hurt = ('segment', i)",
    "semaphores": "i = call(64, 0, 1, 0o1600); call(66, i, 0, 0, 0); hurt = ('set', i)",
    "message_queue": "i = call(68, 0, 0o1600); call(71, i, 0, 0); hurt = ('queue', i)",
    "event_fd": "hurt = os.eventfd(0)",
    "signal_fd": "hurt = ('fd', call(289, -1, struct.pack('Q', 1), 8, 0))",
    "timer_fd": "hurt = ('fd', call(283, 1, 0))",
    "epoll": "hurt = select.epoll().fileno()",
    "timer": "hurt = ('timer', call(222, 1, 0, ctypes.byref(ctypes.c_int())))",
    "interval_timer": "signal.setitimer(signal.ITIMER_REAL, 5); hurt = signal.setitimer(signal.ITIMER_REAL, 0)",
    "pipe": "r, w = os.pipe(); os.write(w, b'x'); hurt = os.read(r, 1)",
    "splice": "r, w = os.pipe(); hurt = ('moved', call(276, r, w, 0, 1))",
    "executable_memory": "m = mmap.mmap(-1, 4096, prot=7); m.write(b'\\xb8\\x2a\\0\\0\\0\\xc3')\nhurt = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",  # noqa: E501
    "make_executable": "m = mmap.mmap(-1, 4096); a = ctypes.addressof(ctypes.c_char.from_buffer(m)); call(10, a, 4096, 5); hurt = 'executable'",  # noqa: E501
    "load_library": "hurt = ctypes.CDLL('libutil.so.1') and 'loaded'",
    "lock_memory": "hurt = ('locked', call(149, id(None) & ~4095, 4096))",
    "x32_call": "hurt = ('pid', call(0x40000000 + 39))",
    "seccomp_again": "hurt = ('actions', call(317, 2, 0, struct.pack('I', 0x7FFF0000)))",
    "landlock_again": "hurt = ('abi', call(444, 0, 0, 1))",
    "reboot": "hurt = ('caps', call(169, 0, 0, 0, 0))",
    "system_log": "hurt = ('bytes', call(103, 10, 0, 0))",
    "set_host_name": "socket.sethostname(socket.gethostname()); hurt = 'changed'",
    "kernel_name": "hurt = os.uname().release",
    "system_statistics": "hurt = ('info', call(99, (ctypes.c_char * 128)()))",
}

DESCRIPTORS_AND_SURROUNDINGS = {
    "inherited_descriptors": "hurt = [fd for fd in range(6, 1024) if fd_is_open(fd)] or None",
    "duplicate_stdout": "hurt = os.dup(1)",
    "environment": "hurt = {k: v for k, v in os.environ.items() if 'SECRET' in k} or None",
    "environment_in_c": "e = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\nv = []\nwhile e[len(v)]: v.append(e[len(v)])\nhurt = [x for x in v if b'SECRET' in x] or None",  # noqa: E501
    "terminal": "hurt = open('/dev/tty').fileno()",
    "random_device": "hurt = open('/dev/urandom', 'rb').read(4)",
    "write_to_tasks": "hurt = [fd for fd in (0, 3) if fd_is_open(fd) and os.write(fd, b'x')] or None",
    "memory": "b = bytearray(3 << 30); hurt = len(b)",
    "many_mappings": "m = [mmap.mmap(-1, 1 << 28) for _ in range(12)]; hurt = len(m)",
    "deep_recursion": "sys.setrecursionlimit(10**9); f = lambda n: f(n - 1) if n else 0; f(3000); hurt = None",
    "null_pointer": "ctypes.string_at(0); hurt = 'read'",
    "unfreeze_secrets": "gc.unfreeze(); hurt = [o for o in gc.get_objects() if type(o) is dict and 'reference' in o and 'S3CRET' in str(o)] or None",  # noqa: E501
    "ask_the_user_database": "import pwd; hurt = pwd.getpwuid(0).pw_name",
    "ask_the_resolver": "hurt = socket.getaddrinfo('localhost', 80)",
}

SIDE_DOORS = {
    "clock_of_victim": "hurt = ('seconds', time.clock_gettime((~victim << 3) | 2))",
    "clock_of_parent": "hurt = ('seconds', time.clock_gettime((~os.getppid() << 3) | 2))",
    "resolution_of_victims_clock": "hurt = ('clock', call(229, (~victim << 3) | 2, (ctypes.c_long * 2)()))",
    "affinity_of_victim": "hurt = os.sched_getaffinity(victim)",
    "affinity_of_parent": "hurt = os.sched_getaffinity(os.getppid())",
    "priority_of_victim": "hurt = ('nice', os.getpriority(os.PRIO_PROCESS, victim))",
    "scheduler_of_victim": "hurt = ('policy', os.sched_getscheduler(victim))",
    "session_of_victim": "hurt = os.getsid(victim)",
    "robust_list_of_victim": "b = (ctypes.c_long * 2)(); call(274, victim, ctypes.byref(b), ctypes.addressof(b) + 8); hurt = b[0]",  # noqa: E501
    "limits_of_victim": "hurt = resource.prlimit(victim, resource.RLIMIT_NOFILE)",
    "capabilities_of_victim": "d = (ctypes.c_uint * 6)(); call(125, struct.pack('Ii', 0x20080522, victim), d); hurt = ('caps', list(d))",  # noqa: E501
    "write_memory": "b = ctypes.create_string_buffer(8); v = struct.pack('2Q', ctypes.addressof(b), 8)\nhurt = call(311, os.getpid(), v, 1, v, 1, 0)",  # noqa: E501
    "take_a_descriptor": "hurt = ('fd', call(438, os.pidfd_open(victim), 0, 0))",
    "clone_with_files": "p = call(56, 0x400 | 17, 0, 0, 0, 0)\nif p == 0: os._exit(0)\nhurt = ('clone', p)",
    "futex_of_old": "call(202, ctypes.addressof(ctypes.c_int(0)), 6, 0, 0); hurt = 'locked, with priority inheritance'",
    "futex_waitv": "call(449, struct.pack('QQII', 1, id(None), 2, 0), 1, 0, 0, 0); hurt = 'waited'",
    "protection_keys": "hurt = ('key', call(330, 0, 0))",
    "pkey_mprotect": "m = mmap.mmap(-1, 4096); call(329, ctypes.addressof(ctypes.c_char.from_buffer(m)), 4096, 7, -1); hurt = 'executable'",  # noqa: E501
    "memory_policy": "hurt = ('policy', call(238, 0, 0, 0))",
    "sendfile": "r, w = os.pipe(); hurt = ('sent', call(40, w, os.open(secret, 0), 0, 4))",
    "tee": "a, b = os.pipe(); c, d = os.pipe(); os.write(b, b'x'); hurt = ('copied', call(276, a, d, 1, 0))",
    "vmsplice": "r, w = os.pipe(); v = struct.pack('2Q', id(None), 8); hurt = ('mapped', call(278, w, v, 1, 0))",
    "write_at": "hurt = ('written', os.pwritev(3, [b'x'], 0))",
    "poke_descriptors_by_high_bits": "hurt = [fd for fd in (0, 3) if call(1, fd | 1 << 32, b'x', 1)]",
    "executable_by_high_bits": "hurt = ('mapped', call(9, 0, 4096, 7 | 1 << 32, 0x22, -1, 0))",
    "executable_shared": "hurt = ('mapped', call(9, 0, 4096, 4, 0x21, -1, 0))",
    "callback_code": "f = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 42); call(10, ctypes.cast(f, ctypes.c_void_p).value & ~4095, 4096, 7); hurt = f()",  # noqa: E501
    "old_kernel_gate": "g = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)\nt = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value & ~4095\nc = ctypes.string_at(t, 1 << 19); i = c.find(b'\\xcd\\x80')\nhurt = ('ran', g(t + i)(b'/', 0)) if i >= 0 else None",  # noqa: E501
    "mount_by_new_calls": "hurt = ('fd', call(430, b'tmpfs', 0))",
    "open_tree": "hurt = ('fd', call(428, -100, b'/', 0))",
    "fanotify": "hurt = ('fd', call(300, 0, 0))",
    "quota": "hurt = call(179, 0x80000700, 0, 0, 0) == 0",
    "swap": "hurt = ('on', call(167, b'/dev/null', 0))",
    "clock_set": "time.clock_settime(time.CLOCK_REALTIME, time.time()); hurt = 'set'",
    "adjust_clock": "hurt = ('state', call(159, (ctypes.c_char * 208)()))",
    "kernel_module": "hurt = call(175, b'', 0, b'') == 0",
    "load_by_memfd": "f = os.memfd_create('m', 2); hurt = ('sealed', call(72, f, 1033, 1))",
    "landlock_rule": "hurt = ('fd', call(444, struct.pack('Q', 1), 8, 0))",
    "second_filter": "p = struct.pack('HBBI', 6, 0, 0, 0x7FFF0000); b = ctypes.create_string_buffer(p); call(317, 1, 0, struct.pack('HxxxxxxP', 1, ctypes.addressof(b))); hurt = 'installed'",  # noqa: E501
    "notified_filter": "hurt = ('fd', call(317, 1, 8, 0))",
    "core_dump": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1)); os.abort(); hurt = 'dumped'",
    "fork_bomb": "for _ in range(20):\n    p = os.fork()\n    if p == 0: os._exit(0)\nhurt = 20",
    "mapping_bomb": "m = [mmap.mmap(-1, 64 << 20, mmap.MAP_SHARED) for _ in range(40)]; hurt = len(m)",
    "sleep_on_anothers_clock": "hurt = call(230, (~victim << 3) | 2, 0, struct.pack('2q', 0, 1), 0) == 0",
}

ATTACKS: dict[str, str] = {
    **NETWORK,
    **FILES,
    **PROCESSES,
    **SIGNALS_AND_MEMORY,
    **KERNEL,
    **DESCRIPTORS_AND_SURROUNDINGS,
    **SIDE_DOORS,
}
