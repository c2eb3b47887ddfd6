"""Helpers that the tests of several rooms share. A helper of one room lives in that room's folder.

Run epbuild:
    commands: run the command line in a folder with a small recipe; no EP is needed
    projects: a project that the command line builds with the real EPs
    quick_builds: a project that QNN builds in a second; its processes, outputs and store during a build
    decoder_builds: a decoder in parts with each kind of step
    warm_start: run command lines in forks of a process that has imported epbuild
    console_blocks: run the `console` blocks of a document and compare their output
    gate: leave most cases of a test to the gate or to the night
    windows: reasons for which a test is skipped on Windows
    moments: call a function of the test at one moment of a program

Builds without an EP:
    encrypted_files: encrypted files, and their key
    fake_builds: a small recipe with a fake toolchain and a fake worker
    fake_sessions: an onnxruntime whose models define how their sessions behave
    worker_listener: a listener that keeps the reports and logs of a worker
    plan_recipes: a recipe and small models to plan
    recipe_texts: changes of a recipe's text, and marks where a problem must be
    recipe_edits: edits of a recipe, generated from its schema
    locks: a small lock file
    packages: small virtual environments and wheels
    fake_cpu: a CPU of another name

Files and records:
    compiled_models: sound and damaged EPContext models
    decoders: a small decoder with a key-value cache
    hostile_artifacts: open thousands of damaged artifacts in one process
    build_records: the record of a build that did nothing
    sample_reports: small, large and hostile reports
    snapshots: the snapshot of a run that found three steps current
    actions_to_pack: actions to distribute over jobs

Servers and machines:
    file_server: a local HTTP server with configurable faults
    http_servers: the thread and the silence of local HTTP servers
    fake_fetcher: a fetcher of models without a network
    cache_server: a local remote cache with configurable faults
    remote_caches: remote caches in a directory or on a server
    registry_server: a local OCI registry with configurable faults
    registry_pushes: a push of one image to that registry
    clusters: a local Dask cluster of `epbuild worker` processes
    local_executor: a cluster of one machine in the process of the test
    axe: accessibility problems of pages
    browser: a headless browser for tests of pages
"""
