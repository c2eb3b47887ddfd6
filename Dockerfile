# Image with epbuild. Build it with `docker build -t epbuild .`, and run it in the folder of a recipe:
#   docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/work" -v epbuild:/cache epbuild run
FROM python:3.11-slim

# QNN's libraries need libatomic.
RUN apt-get update && apt-get install --yes --no-install-recommends libatomic1 && rm -rf /var/lib/apt/lists/*

ARG EXTRAS=archive,graph,hf,remote
RUN --mount=type=bind,target=/epbuild \
    pip install --no-cache-dir --constraint /epbuild/constraints.txt "/epbuild[$EXTRAS]"

# Any user may run the image. Caches of epbuild and uv are below the home folder.
RUN mkdir --mode=1777 /cache
ENV HOME=/cache
WORKDIR /work
ENTRYPOINT ["epbuild"]
