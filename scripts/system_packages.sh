#!/usr/bin/env bash
# The programs that Python packages cannot bring, from the distribution, if they are missing: bubblewrap and the library
# behind its system-call filter, for metrics and model-written code, and a system Python with pip for both.
set -euo pipefail

is_there() {
  command -v bwrap >/dev/null && ldconfig -p | grep -q libseccomp.so.2 && /usr/bin/python3 -m pip --version >/dev/null 2>&1
}

is_there && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Install bubblewrap, libseccomp and python3 with pip by your distribution's own means; see \"Metrics of your own, and code\" in README.md." >&2
  exit 0
fi
as_root=""
if [ "$(id -u)" != 0 ]; then as_root="sudo"; fi
echo "Installing bubblewrap, libseccomp2 and python3-pip."
$as_root apt-get update -q && $as_root apt-get install -y -q bubblewrap libseccomp2 python3 python3-pip || {
  echo "They could not be installed. Custom metrics and code rewards need them: apt install bubblewrap libseccomp2." >&2
}
