"""What untrusted code tries to reach: the network, files, secrets, other processes, the kernel. Real attempts, all denied."""

import json
import os
import socket
import tempfile
import textwrap
from pathlib import Path

import pyseccomp
import pytest

import ratchet
from ratchet.sandbox.launcher import SANDBOX_ID, Contents, Limits, Sandbox, arguments, python_command
from ratchet.sandbox.tools import find_tools

SCRIPT = "/script.py"
DENIED = """
    unshare setns mount umount2 pivot_root chroot bpf perf_event_open userfaultfd keyctl add_key request_key
    io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsmount mount_setattr
    ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd process_madvise
    memfd_create memfd_secret shmget shmat msgget semget mq_open socket open_by_handle_at fanotify_init
    kexec_load init_module finit_module delete_module swapon reboot clock_settime
"""


def inside(code, *, seconds=20.0, scratch=None, limits=None, **values):
    """Run code in a sandbox and return what it leaves in ``found``."""
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    text = f"import json, os, sys\n{given}{textwrap.dedent(code)}\nprint(json.dumps(found))"
    with Sandbox(python_command(SCRIPT), Contents({SCRIPT: text.encode()}, scratch or {}), limits) as sandbox:
        status = sandbox.wait(seconds)
        assert status == 0, (status, sandbox.complaint())
        return json.loads(os.read(sandbox.stdout, 65_536))


def test_no_listener_of_the_machine_can_be_reached(pool_of, tmp_path):
    abstract = f"\0ratchet-{os.getpid()}"
    listeners = [socket.socket(family, kind) for family, kind in KINDS]
    try:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            os.chmod(folder, 0o777)
            addresses = [("127.0.0.1", 0), ("127.0.0.1", 0), f"{folder}/socket", abstract]
            for listener, address in zip(listeners, addresses, strict=True):
                listener.bind(address)
                listener.setblocking(False)
                if listener.type == socket.SOCK_STREAM:
                    listener.listen()
            reached = [listener.getsockname() for listener in listeners]
            source = f"""
                import socket
                def score(answer, reference):
                    denied = 0
                    for family, kind, address in {[(f.value, k.value, a) for (f, k), a in zip(KINDS, reached, strict=True)]!r}:
                        try:
                            one = socket.socket(family, kind)
                            one.connect(address)
                            one.send(b"hello")
                        except OSError:
                            denied += 1
                    return denied / 4
            """
            assert pool_of(textwrap.dedent(source)).score("", "").value == 1.0
        for listener in listeners:
            with pytest.raises(BlockingIOError):
                listener.accept() if listener.type == socket.SOCK_STREAM else listener.recv(10)
    finally:
        for listener in listeners:
            listener.close()


KINDS = [
    (socket.AF_INET, socket.SOCK_STREAM),
    (socket.AF_INET, socket.SOCK_DGRAM),
    (socket.AF_UNIX, socket.SOCK_STREAM),
    (socket.AF_UNIX, socket.SOCK_STREAM),
]


def test_a_datagram_pair_cannot_be_led_to_an_abstract_address_of_the_machine():
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with listener:
        listener.bind(f"\0ratchet-datagram-{os.getpid()}")
        listener.setblocking(False)
        code = """
            import socket
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            found = []
            for attempt in (lambda: one.connect(address), lambda: one.sendto(b"hello", address)):
                try:
                    attempt()
                    found.append("sent")
                except OSError as error:
                    found.append("denied")
        """
        assert inside(code, address=listener.getsockname()) == ["denied", "denied"]
        with pytest.raises(BlockingIOError):
            listener.recv(10)


def test_only_usr_can_be_seen():
    with tempfile.NamedTemporaryFile(dir="/tmp") as canary:
        os.chmod(canary.name, 0o644)
        hidden = [canary.name, "/etc/passwd", "/root", "/home", "/proc/1/environ", "/sys", ratchet.__file__]
        code = "found = [sorted(os.listdir('/')), [path for path in hidden if os.path.exists(path)]]"
        assert inside(code, hidden=hidden) == [["bin", "dev", "lib", "lib64", "script.py", "usr"], []]
        assert Path(canary.name).exists()


def test_the_trainers_token_is_nowhere(monkeypatch):
    token = "token-" + os.urandom(8).hex()
    monkeypatch.setenv("HF_TOKEN", token)
    code = """
        found = {"environment": dict(os.environ), "arguments": sys.orig_argv}
        for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/cmdline"):
            try:
                found[path] = open(path).read()
            except OSError:
                pass
    """
    found = inside(code)
    assert token not in json.dumps(found)
    assert found.keys() == {"environment", "arguments"}
    assert found["environment"].keys() <= {
        "PATH", "LANG", "LC_CTYPE", "PWD", "PYTHONHASHSEED",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip


def test_bwrap_itself_is_started_without_the_trainers_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "token-of-the-trainer")
    with Sandbox(["/usr/bin/sleep", "60"]) as sandbox:
        outer = sandbox._process.pid
        assert b"token-of-the-trainer" not in Path(f"/proc/{outer}/environ").read_bytes()


WRITES = """
    found = []
    for path in ("/tmp/x", "/x", "/dev/x", "/dev/shm/x", "/usr/x", "/usr/lib/x", "/script.py"):
        try:
            open(path, "w").write("x")
            found.append(path)
        except OSError:
            pass
"""


def test_nothing_can_be_written():
    assert inside(WRITES) == []


def test_only_the_scratch_folders_can_be_written_and_only_up_to_their_size():
    scratch = {"/tmp": 4 << 20, "/dev/shm": 1 << 20}
    assert inside(WRITES, scratch=scratch) == ["/tmp/x", "/dev/shm/x"]
    code = """
        found = 0
        try:
            with open("/tmp/big", "wb", buffering=0) as file:
                while found < 64 << 20:
                    found += file.write(bytes(1 << 16))
        except OSError:
            pass
    """
    assert inside(code, scratch=scratch) <= 4 << 20
    assert not Path("/tmp/big").exists()


def test_processes_stop_at_the_limit_also_when_the_trainer_is_root():
    code = """
        import signal, time
        found = 0
        try:
            while found < 400:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                found += 1
        except OSError:
            pass
    """
    assert 20 <= inside(code, limits=Limits(processes=32)) <= 32


def test_the_limit_on_processes_does_not_count_the_trainers_threads():
    import threading

    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        code = "child = os.fork()\nif child == 0:\n    os._exit(0)\nfound = os.waitpid(child, 0)[1]"
        assert inside(code, limits=Limits(processes=4)) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_memory_is_limited_and_the_trainers_is_left_alone():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    code = """
        kept, found = [], None
        try:
            while True:
                kept.append(bytearray(16 << 20))
        except MemoryError:
            found = len(kept)
            kept.clear()
    """
    assert inside(code, limits=Limits(address_space=512 << 20)) <= 32
    assert resident() - before < 64 << 20


@pytest.mark.parametrize("name", DENIED.split())
def test_a_system_call_that_could_reach_further_is_denied(name):
    number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)
    assert denied_with(number) == 1, f"{name} must fail with EPERM"


def denied_with(number, *values):
    code = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(number, *(list(values) or [0] * 6))
        found = ctypes.get_errno()
    """
    return inside(code, number=number, values=values)


def test_a_process_with_new_namespaces_is_denied_and_clone3_is_unknown():
    numbers = {name: pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) for name in ("clone", "clone3")}
    new_user, new_network = 0x10000000, 0x40000000
    assert denied_with(numbers["clone"], new_user | 17, 0, 0, 0, 0) == 1
    assert denied_with(numbers["clone"], new_network | 17, 0, 0, 0, 0) == 1
    assert denied_with(numbers["clone3"]) == 38  # ENOSYS: glibc then uses clone


def test_it_has_no_privileges_and_cannot_get_any():
    code = """
        import ctypes
        libc = ctypes.CDLL(None)
        get_seccomp, get_no_new_privileges, capability_in_bounds = 21, 39, 23
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc.capget(header, data)
        found = {
            "seccomp": libc.prctl(get_seccomp),
            "no new privileges": libc.prctl(get_no_new_privileges, 0, 0, 0, 0),
            "capabilities": list(data),
            "user": os.getuid(),
        }
    """
    found = inside(code)
    expected = SANDBOX_ID if os.geteuid() == 0 else os.geteuid()
    assert found == {"seccomp": 2, "no new privileges": 1, "capabilities": [0] * 6, "user": expected}


def test_the_order_of_a_set_is_the_same_in_every_process():
    code = "found = [list({str(number) for number in range(50)}), sys.path]"
    first, second = inside(code), inside(code)
    assert first == second
    assert all(path.startswith("/usr/") for path in first[1])


def test_nothing_of_the_trainer_is_open_inside():
    code = """
        import fcntl
        found = []
        for number in range(64):
            try:
                fcntl.fcntl(number, fcntl.F_GETFD)
                found.append(number)
            except OSError:
                pass
    """
    assert inside(code) == [0, 1, 2]


def test_what_ordinary_python_needs_works():
    code = """
        import asyncio, sqlite3, subprocess, tempfile, threading, multiprocessing
        async def main():
            await asyncio.sleep(0)
            return 1
        database = sqlite3.connect(":memory:")
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        with multiprocessing.Pool(2) as pool:
            squares = pool.map(abs, [-1, -2])
        found = [asyncio.run(main()), database.execute("select 2").fetchone()[0], squares,
                 subprocess.run(["/bin/echo", "3"], capture_output=True, text=True).stdout]
    """
    scratch = {"/tmp": 16 << 20, "/dev/shm": 16 << 20}
    assert inside(code, scratch=scratch) == [1, 2, [1, 2], "3\n"]


def test_no_folder_is_bound_but_usr_and_the_packages():
    contents = Contents({"/w.py": b""}, {"/tmp": 1}, packages=Path("/opt/metrics"))
    argv = arguments(find_tools(), contents, {"/w.py": 9}, 10, 11)
    bound = [argv[index + 1] for index, word in enumerate(argv) if word in ("--bind", "--ro-bind", "--dev-bind")]
    assert bound == ["/usr", "/dev/null", "/opt/metrics"]
    assert "--proc" not in argv, "containers with a masked /proc could not mount it"
    assert "--clearenv" in argv
