"""The fixed parts of a reproduction script, in the order in which they stand there."""

from __future__ import annotations

IMPORTS = """
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path

import torch
"""

IMPORTS_FOR_PUBLISHED = ("import importlib.abc\n", "import importlib.machinery\n")
"""Lines of IMPORTS that only a published file needs."""

DEVICE = '''
def stop(reason):
    """Say why this cannot be run here."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def is_ascend():
    """Whether the module triton is that of triton-ascend, whose interpreter has no tl.gather."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version("triton-ascend"))
    except PackageNotFoundError:
        return False


def find_device():
    if os.environ.get("TRITON_INTERPRET") == "1" and not PLAIN_TORCH and is_ascend():
        stop(
            "this Python has triton-ascend, whose interpreter has no tl.gather: use one with triton"
            " (in a checkout of the suite that is .venv-interpreter/bin/python)"
        )
    if ON_HOST or os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    try:
        import torch_npu  # noqa: F401  (it registers the device)

        return "npu"
    except ImportError:
        pass
    if torch.cuda.is_available():
        return "cuda"
    if PLAIN_TORCH:
        return "cpu"
    stop("there is no NPU and no GPU here: set TRITON_INTERPRET=1 to run on the host")


def synchronize():
    if DEVICE != "cpu":
        getattr(torch, DEVICE).synchronize()


DEVICE = find_device()
torch.set_num_threads(1)
'''

PUBLISHED = '''
# The file under test imports an engine around it. What of that is not installed is replaced by stand-ins, which are
# enough for an import; what the call itself needs is defined here.
try:
    import triton
    import triton.language as tl

    @triton.jit
    def _load_ptr(address_ptr, element_type: tl.constexpr):
        return tl.load(address_ptr).to(tl.pointer_type(element_type))

except ImportError:
    triton = tl = _load_ptr = None


class HostBuffer:
    """CpuGpuBuffer on a machine with one memory."""

    def __init__(self, *size, dtype, **_):
        self.hold(torch.zeros(*size, dtype=dtype))

    def hold(self, tensor):
        self.cpu = self.gpu = tensor
        self.np = tensor.numpy()

    def copy_to_gpu(self, count=None):
        return self.gpu if count is None else self.gpu[:count]


OF_THE_ENGINE = {
    "get_dcp_group": lambda: types.SimpleNamespace(world_size=WORLD_SIZE, rank_in_group=RANK),
    "get_pcp_group": lambda: types.SimpleNamespace(world_size=1, rank_in_group=0),
    "get_decode_context_model_parallel_world_size": lambda: WORLD_SIZE,
    "get_total_cp_world_size": lambda: WORLD_SIZE,
    "CpuGpuBuffer": HostBuffer,
}
KNOWN = {
    **OF_THE_ENGINE,
    "triton": triton,
    "tl": tl,
    "_load_ptr": _load_ptr,
    "cdiv": lambda a, b: -(-a // b),
    "PAD_SLOT_ID": -1,
}


class StandIn(type):
    """Can be imported, derived from, used as a decorator and as an annotation; not called after that."""

    importing = True

    def __call__(cls, *args, **kwargs):
        if not StandIn.importing:
            stop(f"{cls.__name__} was called, but its package is not installed")
        return args[0] if len(args) == 1 and callable(args[0]) else StandIn(cls.__name__, (), {})

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})

    def __getitem__(cls, item):
        return cls


class Around(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the packages around the file under test; `folder` holds the file's own package."""

    def __init__(self, folder, names):
        self.folder, self.names = folder, names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return KNOWN.get(name) or StandIn(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        file = self.folder.joinpath(*module.__name__.split(".")).with_suffix(".py")
        if module.__name__.startswith("vllm_ascend.") and file.is_file():
            module.__file__ = str(file)
            try:
                exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
            except Exception:
                pass  # it needs more than is here: a stand-in from that line on


def surround(folder):
    own = MODULE.partition(".")[0]
    absent = {name for name in ("vllm", "vllm_ascend", "torch_npu") if not importlib.util.find_spec(name)}
    sys.meta_path.insert(0, Around(folder, absent | {own}))
'''

LOAD = '''
def load(path):
    """The module under test: from `path`, from FILE, or as it is installed."""
    if path is None and not Path(FILE).is_file():
        if importlib.util.find_spec(MODULE.partition(".")[0]) is None:
            stop(f"give the file that defines {FUNCTION}: {FILE} is not here and the package is not installed")
        module = importlib.import_module(MODULE)
    else:
        module = load_file(Path(path or FILE).resolve())
    if not hasattr(module, FUNCTION.partition(".")[0]):
        stop(f"{module.__file__} defines no {FUNCTION}")
    return module


def load_file(file):
    names = MODULE.split(".")
    if list(file.with_suffix("").parts[-len(names) :]) != names:
        names = [file.stem]  # a file on its own
    folder = file.parents[len(names) - 1]
    surround(folder)
    for depth in range(1, len(names)):  # the packages above it are not executed
        package = types.ModuleType(".".join(names[:depth]))
        package.__path__ = [str(folder.joinpath(*names[:depth]))]
        sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(".".join(names), file)
    if spec is None:
        stop(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError, SyntaxError) as error:
        stop(f"{file} cannot be imported: {type(error).__name__}: {error}")
    StandIn.importing = False
    return module
'''

LOAD_FOR_PUBLISHED = ("    surround(folder)\n", "    StandIn.importing = False\n")
"""Lines of LOAD that only a published file needs."""

PLAIN_MEMORY = '''
MARGIN = {margin}  # cells on either side of each buffer, which nothing may change


def room_for(name, count, dtype):
    """Memory for `count` elements and the margins, and where the elements start."""
    return torch.empty(count + 2 * MARGIN, dtype=dtype), MARGIN
'''

GUARDED_MEMORY = '''
MARGIN = {margin}  # cells on either side of a buffer, where memory goes on
AFTER = {after}  # memory ends right behind a buffer's last element, else right before its first
GAP = {gap}  # bytes beside each buffer that cannot be touched
OPEN = {opened}  # buffers beside which memory goes on all the same


def room_for(name, count, dtype):
    """Memory for `count` elements and where they start: on the host beside pages that cannot be touched."""
    if DEVICE != "cpu" or name.partition("[")[0] in OPEN:
        return torch.empty(count + 2 * MARGIN, dtype=dtype), MARGIN
    import ctypes
    import mmap

    page, itemsize = mmap.PAGESIZE, torch.empty(0, dtype=dtype).element_size()
    inside = -(-max(count * itemsize, 1) // page) * page
    gap = -(-GAP // page) * page
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    whole = mmap.mmap(-1, inside + 2 * gap, flags=flags)
    base = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(base, gap, 0) or protect(base + gap + inside, gap, 0):
        stop("memory cannot be protected here")
    memory = (ctypes.c_char * inside).from_buffer(whole, gap)
    return torch.frombuffer(memory, dtype=dtype), inside // itemsize - count if AFTER else 0
'''

BUFFERS = '''
ROOMS = []


def place(name, dtype, values, around, shape, strides, writable):
    """A buffer that holds `values`; the cells around it hold `around` and must keep it."""
    count = len(values)
    room, start = room_for(name, count, dtype)
    room.fill_(around)
    if count:
        room[start : start + count] = torch.tensor(values, dtype=dtype)
    room = room.to(DEVICE)
    ROOMS.append((name, room, start, count, room.cpu().tolist(), writable))
    part = room[start : start + count]
    if shape is None:
        return part
    return part.view(shape) if strides is None else part.as_strided(shape, strides, start)


def tensor(name, dtype, values, shape=None, strides=None):
    """An input. What is around it is no block number, position or size."""
    around = {"bool": True, "int32": 0x7E7E7E7E}.get(dtype, 0x7E7E7E7E7E7E7E7E)
    return place(name, getattr(torch, dtype), values, around, shape, strides, False)


def output(name, dtype, values, shape=None, strides=None):
    return place(name, getattr(torch, dtype), values, POISON, shape, strides, True)


def addresses(name, tensors):
    """A table of where other buffers are."""
    return tensor(name, "uint64", [each.data_ptr() for each in tensors])
'''

BACKWARDS = '''
def run_backwards():
    """On the host, run the programs of a launch from the last to the first: a later one must not repair an earlier."""
    if DEVICE == "cpu":
        from triton.runtime.interpreter import interpreter_builder as builder

        forwards = builder.set_grid_idx

        def set_grid_idx(x, y, z):
            width, height, depth = builder.grid_dim
            forwards(width - 1 - x, height - 1 - y, depth - 1 - z)

        builder.set_grid_idx = set_grid_idx
'''

METHOD_CALL = '''
def call_method(module, arguments):
    """Make the object with its own constructor, give it the buffers, and call the method."""
    import inspect

    for name, value in OF_THE_ENGINE.items():
        if hasattr(module, name):
            setattr(module, name, value)
    owner, _, method = FUNCTION.partition(".")
    owner = getattr(module, owner)
    accepted = inspect.signature(owner.__init__).parameters
    values = {name: arguments[name] for name in accepted if name in arguments}
    if "device" in accepted:
        values["device"] = arguments["slot_mapping"].device
    if "kernel_sizes" in accepted:
        values["kernel_sizes"] = [arguments["kernel_size"]]
    table = owner(**values)
    table.block_table.hold(arguments["block_table"])
    table.slot_mapping.hold(arguments["slot_mapping"])
    own = {name: arguments[name] for name in inspect.signature(getattr(table, method)).parameters}
    if TAKES_NUMPY:
        own = {name: value.numpy() for name, value in own.items()}
    getattr(table, method)(**own)
'''

COMPARE = '''
def shown(value):
    return "nothing written" if value == POISON else str(value)


def compare(outputs):
    """0 if every element is as expected and nothing else was changed, else 1."""
    wrong = []
    for group, (output, wanted) in enumerate(zip(outputs, EXPECTED)):
        for index, (want, have) in enumerate(zip(wanted, output.cpu().tolist())):
            if want != have:
                line = f"group {group} element {index}: expected {shown(want)}, got {shown(have)}"
                wrong.append("\\n    ".join([line, *WHY.get((group, index), [])]))
    for name, room, start, count, before, writable in ROOMS:
        for index, (was, now) in enumerate(zip(before, room.cpu().tolist())):
            if was != now and not (writable and start <= index < start + count):
                wrong.append(f"{name}[{index - start}] was changed from {was} to {now}; {name} has {count} elements")
    print("\\n".join(wrong[:40]) if wrong else "as expected")
    if len(wrong) > 40:
        print(f"and {len(wrong) - 40} more")
    if DEVICE != "cpu" and UNSEEN_ON_A_DEVICE:
        print(UNSEEN_ON_A_DEVICE)
    return 1 if wrong else 0
'''

END = """
if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # what a launch raises may say anything
    sys.exit(main())
"""

ISOLATED_END = '''
def isolated():
    """Run `main` in a process of its own where it can be told apart that it died."""
    if DEVICE != "cpu":
        return main()
    import signal
    import traceback

    sys.stdout.flush()
    child = os.fork()
    if not child:
        signal.alarm(120)
        status = 2
        try:
            status = main()
        except SystemExit as error:
            status = error.code
        except BaseException:  # the process ends below, whatever it was
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        print("the launch did not end within 120 s")
    elif status < 0:
        print(f"the launch died of {signal.Signals(-status).name}")
    return 1 if status < 0 else status


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # what a launch raises may say anything
    sys.exit(isolated())
'''
