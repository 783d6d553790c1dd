#!/usr/bin/env bash
# github_files.sh SOURCE_FOLDER: what GitHub reads of this tree has only fields that GitHub knows, by the schemas that
# check-jsonschema brings: workflows, issue forms and their settings, and CITATION.cff. Ends with 77 where that is missing.
set -euo pipefail
readonly source_folder=$1
if ! command -v check-jsonschema >/dev/null; then
  echo "SKIPPED: no check-jsonschema here (PyPI's package of that name)"
  exit 77
fi
check() { check-jsonschema --builtin-schema "vendor.$1" "${@:2}"; }

check github-workflows "$source_folder"/.github/workflows/*.yml
check github-issue-config "$source_folder/.github/ISSUE_TEMPLATE/config.yml"
for form in "$source_folder"/.github/ISSUE_TEMPLATE/*.yml; do
  [[ $form == */config.yml ]] || check github-issue-forms "$form"
done
check citation-file-format "$source_folder/CITATION.cff"

# The check can fail.
broken=$(mktemp --suffix=.yml)
trap 'rm -f "$broken"' EXIT
sed 's/runs-on:/run-on:/' "$source_folder/.github/workflows/ci.yml" >"$broken"
if check github-workflows "$broken"; then
  echo "a workflow with a field that GitHub does not know passed"
  exit 1
fi
