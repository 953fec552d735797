# A CPU image with the commands `mathppo` and `graders`.
#
#   docker build -t mathppo .
#   docker run --rm mathppo doctor
#   docker run --rm -v mathppo-runs:/runs mathppo train --run-dir /runs/first
#
# The default torch wheel for Linux includes CUDA libraries; pass an index with CPU wheels to leave them out:
# `docker build --build-arg EXTRA_INDEX=... .`
FROM python:3.12-slim

ARG EXTRA_INDEX=""
RUN useradd --create-home --shell /usr/sbin/nologin mathppo && install -d -o mathppo -g mathppo /runs

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY scripts/constraints.txt scripts/
COPY graders graders
COPY data data
COPY mathppo mathppo
RUN pip install --no-cache-dir ${EXTRA_INDEX:+--extra-index-url "$EXTRA_INDEX"} --constraint scripts/constraints.txt . \
    && rm -rf /src/*

USER mathppo
WORKDIR /runs
ENTRYPOINT ["mathppo"]
CMD ["--help"]
