#!/usr/bin/env bash
# The programs that only the tests need, from the distribution, if they are missing: a PostgreSQL server, of which every
# test process starts one of its own in a temporary folder. Without it those tests are skipped, with the reason.
set -euo pipefail

is_there() {
  command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null
}

is_there && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Install PostgreSQL's server by your distribution's own means, or the tests with it are skipped." >&2
  exit 0
fi
as_root=""
if [ "$(id -u)" != 0 ]; then as_root="sudo"; fi
echo "Installing postgresql, for tests."
$as_root apt-get update -q && $as_root apt-get install -y -q --no-install-recommends postgresql || {
  echo "It could not be installed; the tests with it are skipped." >&2
}
