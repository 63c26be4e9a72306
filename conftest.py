pytest_plugins = [
    "conformance.progress",
    "conformance.plugin",
    "conformance.gate",
    "conformance.outputs",
    "conformance.corpus_run",
    "conformance.workers.plugin",
]
