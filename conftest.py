pytest_plugins = ["conformance.plugin", "conformance.gate"]
