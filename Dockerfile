# Analyses captures: docs/installing.md shows how. A job needs no image; install dynprof in its own.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[analysis,serve]" && rm -r /wheels
# A file that dynprof writes belongs to the user of the container: run it as the captures' owner.
USER 1000:1000
WORKDIR /captures
ENTRYPOINT ["dynprof"]
CMD ["--help"]
