pytest_plugins = ["conformance.plugin", "conformance.gate", "conformance.outputs"]
