"""Native code for the machine this runs on: LLVM IR to relocatable code, and that into this process."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from conformance.lanes.errors import CompileError


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _machine(speed: int = 2) -> Any:
    _initialize()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=speed, reloc="pic", codemodel="jitdefault"
    )


def described() -> str:
    """What native code depends on besides its source."""
    _initialize()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.llvm_version_info}"


def object_code(llvm_ir: str, exported: Collection[str], speed: int = 2) -> bytes:
    """Relocatable code in which only the functions ``exported`` can be called from outside. ``speed`` is LLVM's
    optimization level. Raises CompileError.
    """
    _initialize()
    try:
        module = llvm.parse_assembly(llvm_ir)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM: {error}") from error
    for function in module.functions:
        if not function.is_declaration and function.name not in exported:
            function.linkage = "internal"
    machine = _machine(speed)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=speed))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


class Code:
    """Relocatable code in this process, as long as this object lives."""

    def __init__(self, code: bytes) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, function: str) -> int:
        """Where an exported function is."""
        return int(self._engine.get_function_address(function))
