"""System call filter: its decisions on every supported machine, computed by an interpreter of its instructions."""

import pytest

from graders.sandbox.isolation import seccomp
from graders.sandbox.isolation.syscalls import AUDIT_ARCH, NUMBERS

KILL, REFUSE, ALLOW = 0x80000000, 0x0005000D, 0x7FFF0000
MACHINES = ["x86_64", "aarch64"]
WRITABLE = (1, 2, 4, 5)
FORBIDDEN = {  # numbers of system calls that must kill the process, per machine
    "x86_64": {
        "socket": 41,
        "clone": 56,
        "fork": 57,
        "vfork": 58,
        "execve": 59,
        "kill": 62,
        "ptrace": 101,
        "clone3": 435,
    },
    "aarch64": {
        "socket": 198,
        "clone": 220,
        "execve": 221,
        "kill": 129,
        "ptrace": 117,
        "clone3": 435,
        "io_uring_setup": 425,
    },
}


def decide(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Interpret the classic BPF program over one struct seccomp_data."""
    memory = {0: number, 4: AUDIT_ARCH[machine] if arch is None else arch}
    memory |= {16 + 8 * k: argument & 0xFFFFFFFF for k, argument in enumerate(arguments)}
    accumulator, at = 0, 0
    code = seccomp.program(machine, WRITABLE)
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            accumulator = memory.get(operand, 0)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x06:
            return operand
        else:
            test = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            at += if_true if test[operation] else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_decisions_by_arguments(machine: str) -> None:
    numbers = NUMBERS[machine]
    assert decide(machine, numbers["read"], 3) == ALLOW
    assert [fd for fd in range(100) if decide(machine, numbers["write"], fd) == ALLOW] == list(WRITABLE)
    assert [fd for fd in range(100) if decide(machine, numbers["writev"], fd) == ALLOW] == list(WRITABLE)
    for call in ("mmap", "mprotect"):
        assert [p for p in range(8) if decide(machine, numbers[call], 0, 4096, p) == ALLOW] == [0, 1, 2, 3]
    allowed = [op for op in range(128) if decide(machine, numbers["futex"], 0, op) == ALLOW]
    assert allowed == [0, 1, 9, 10]
    assert decide(machine, numbers["futex"], 0, 0 | 128 | 256) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_all_other_calls_kill(machine: str) -> None:
    known = set(NUMBERS[machine].values())
    for number in range(600):
        if number not in known:
            assert decide(machine, number) == KILL
    for number in FORBIDDEN[machine].values():
        assert decide(machine, number) == KILL
    assert decide(machine, NUMBERS[machine]["read"] | 0x40000000) == KILL
    assert decide(machine, NUMBERS[machine]["read"], arch=0x40000003) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_probing_calls_fail_with_eacces(machine: str) -> None:
    for name in seccomp.REFUSED:
        if name in NUMBERS[machine]:
            assert decide(machine, NUMBERS[machine][name]) == REFUSE, name


def test_every_name_has_a_number_on_x86_64_and_jumps_fit_a_byte() -> None:
    names = {entry.removesuffix("_checked") for entry in seccomp.ALLOWED} | set(seccomp.REFUSED)
    assert names <= set(NUMBERS["x86_64"])
    for machine in MACHINES:
        program = seccomp.program(machine, WRITABLE)
        assert len(program) < 4096
        assert all(0 <= jump < 256 for _, if_true, if_false, _ in program for jump in (if_true, if_false))


@pytest.mark.parametrize("machine", MACHINES)
def test_clocks_and_processors_of_other_processes_are_refused(machine: str) -> None:
    for name in ("clock_gettime", "clock_getres", "clock_nanosleep"):
        number = NUMBERS[machine][name]
        assert all(decide(machine, number, clock) == ALLOW for clock in range(12))
        assert all(decide(machine, number, ((~pid << 3) | 2) & 0xFFFFFFFF) == REFUSE for pid in (1, 77, 4_000_000))
    number = NUMBERS[machine]["sched_getaffinity"]
    assert [pid for pid in range(100) if decide(machine, number, pid) == ALLOW] == [0]
