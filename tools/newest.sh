#!/usr/bin/env bash
# The tests with the newest versions of all dependencies, in an environment of their own.
#
#   tools/newest.sh                                      # everything
#   tools/newest.sh tests/metrics tests/test_readme.py   # these tests only
#   tools/newest.sh --only ray --only timm tests/bench   # the newest of these packages, and the tested versions of others
#
# Prints what differs from constraints.txt, then the tests that fail. Without a difference no test runs.
set -euo pipefail
cd "$(dirname "$0")/.."

only=()
while [ "${1:-}" = --only ]; do
  only+=("${2:?--only needs a package}")
  shift 2
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
touch "$scratch/constraints.txt"
if [ ${#only[@]} -gt 0 ]; then
  cp constraints.txt "$scratch/constraints.txt"
  for package in "${only[@]}"; do
    name=$(tr '_.' '--' <<< "${package,,}")
    grep -q "^$name==" constraints.txt || { echo "constraints.txt has no $name." >&2; exit 2; }
    sed -i "/^$name==/d" "$scratch/constraints.txt"
  done
fi

uv venv --quiet "$scratch/env"
# Without its configuration, in which pyproject.toml repeats constraints.txt, uv takes the newest versions.
uv pip compile --quiet --no-config --python "$scratch/env" --constraint "$scratch/constraints.txt" --no-annotate \
  --no-header --upgrade --group dev --group tools --group s3 --group docs - <<< "cots @ file://$PWD" \
  | grep -v '^cots @' > "$scratch/newest.txt"

changed=0
while IFS='=' read -r name _ tested; do
  found=$(sed -n "s/^$name==//p" "$scratch/newest.txt")
  if [ -n "$found" ] && [ "$found" != "$tested" ]; then
    echo "$name $tested -> $found"
    changed=$((changed + 1))
  fi
done < <(grep -v '^#' constraints.txt)
if [ "$changed" = 0 ]; then
  echo "No version differs from constraints.txt."
  exit 0
fi

uv pip install --quiet --no-config --python "$scratch/env" --requirement "$scratch/newest.txt" --editable .
"$scratch/env/bin/python" -m pytest --tb=line -rfE --cache-clear "$@"
