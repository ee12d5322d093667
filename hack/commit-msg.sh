#!/usr/bin/env bash
# Checks the subjects of commits: `area: verb ...`, at most 72 characters. As a hook of git it gets the file of a message. Without an argument it
# checks the last twenty commits.
set -euo pipefail
bad=0
# A subject does not begin with these words: it begins with a verb, as in "count pods once".
noVerb='a|all|an|any|another|at|both|by|each|every|for|from|if|in|it|its|no|nobody|not|of|on|one|only|some|that|the|their|there|they|this|to|two|what|when|where|which|who|with|without|is|are|was|were'
while IFS= read -r subject; do
  case $subject in Merge\ * | Revert\ *) continue ;; esac
  why=
  if ((${#subject} > 72)); then why="has ${#subject} characters, at most 72 are allowed"; fi
  if ! [[ $subject =~ ^[a-z0-9./-]+(,\ [a-z0-9./-]+)*:\ [a-z-]+ ]]; then
    why="is not 'area: verb ...', as in 'scheduler: count pods once'"
  elif [[ $subject =~ ^[^:]+:\ ($noVerb)(\ |$) ]]; then
    why="does not begin with a verb after the area: ${BASH_REMATCH[1]}"
  fi
  if [[ -n $why ]]; then echo "subject \"$subject\" $why" >&2 && bad=1; fi
done < <(if (($#)); then head -n 1 "$1"; else git log -20 --no-merges --format=%s; fi)
exit "$bad"
