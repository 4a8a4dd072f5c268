#!/bin/sh
# Verifies the hash chain and the checkpoints of one gateway's attestation log. Needs jq, openssl 3.0 or newer, gzip and coreutils.
#
#   sh verify-log.sh KEY.pem [checkpoints.jsonl] FILE...
#
# KEY.pem is the output of `attest-gateway log show-key`. The files are given in the order of their lines; .gz files are read, too.
set -eu
export LC_ALL=C # the length of a line is in bytes
key=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
zeros=$(printf '%064d' 0)
chain='' chains='' number=0 head=$zeros signed='' before='' late='' gone=''
: > "$work/kept" > "$work/lines" > "$work/said" > "$work/pending" > "$work/checkpoints"
# Sets $hash to the SHA-256 of standard input.
hash() { sha256sum > "$work/hash" && read -r hash _ < "$work/hash"; }
bad() {
  echo "$file line $line: $1"
  exit 1
}
# Verifies the checkpoint in the current line. It signs the `removed` lines since the previous checkpoint, too.
signature() {
  jq -r '("attest-gateway/v1/log-checkpoint\n\(.checkpoint.replica)\n\(.chain.id)\n\(.checkpoint.count)\n\(.checkpoint.head)\n\(.at)\n" +
    (.checkpoint.found | if . then "\(.first) \(.last)\n" else "" end), .checkpoint.signature | @base64), ({id: .chain.id, found: .checkpoint.found} | tojson)' \
    "$work/line" > "$work/parts"
  { read -r part && echo "$part" | base64 -d > "$work/signed" && read -r part && read -r named; } < "$work/parts"
  echo "$part" | base64 -d | base64 -d > "$work/signature" || bad "its checkpoint has no signature"
  openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$work/signed" -sigfile "$work/signature" > /dev/null 2>&1 ||
    bad "its checkpoint is not signed by this key"
  printf '%s\n' "$named" >> "$work/checkpoints"
  cat "$work/pending" >> "$work/said"
  : > "$work/pending"
}
# Prints the values of $2, which are $3 in number, of each line of a file: one on a line, - for a missing one.
values() {
  jq -Rr '(fromjson? // null) | try ['"$2"'] catch [range('"$3"') | null] | .[] | if . == null then "-" else tostring | gsub("\n"; " ") end' "$1"
}
case $1 in *checkpoints.jsonl)
  file=$1 line=0
  values "$file" '.chain.id, .chain.number, if .checkpoint then .checkpoint.count == .chain.number - 1 and .checkpoint.head == .chain.previous else null end' 3 \
    > "$work/values"
  while IFS= read -r text; do
    line=$((line + 1))
    { read -r id && read -r n && read -r belongs; } <&3
    printf '%s' "$text" > "$work/line"
    [ "$id" != - ] && [ "$n" != - ] || bad "it is no line of a chain"
    case $belongs in
      true) signature ;;
      false) bad "its checkpoint belongs elsewhere" ;;
    esac
    ! grep -q "^$id $n " "$work/kept" || bad "it is there twice"
    hash < "$work/line"
    echo "$id $n $hash" >> "$work/kept"
    printf '%s\n' "$text" >> "$work/lines"
  done < "$file" 3< "$work/values"
  shift
  ;;
esac
for file in "$@"; do
  [ "$file" != "$before.gz" ] || continue # both exist during compression
  before=$file
  [ -e "$file" ] || file=$file.gz # compressed since it was listed
  line=0 offset=0 outside=0 plain=$file
  case $file in *.gz) plain=$work/plain && zcat "$file" > "$plain" ;; esac
  [ "$(tr -d '\000' < "$plain" | wc -c)" = "$(wc -c < "$plain")" ] || bad "it has null bytes, which no gateway writes"
  values "$plain" '.chain.id, .chain.number, .chain.previous, .chain.begins.before.bytes, .chain.begins.before.sha256,
    (.chain.begins != null), .chain.begins.why, .checkpoint.count, .checkpoint.head, (.removed != null)' 10 > "$work/values"
  while text='' && IFS= read -r text; do
    line=$((line + 1))
    printf '%s' "$text" > "$work/line"
    { read -r id && read -r n && read -r previous && read -r bytes && read -r sha256 && read -r begins && read -r why && read -r count && read -r top && read -r removed; } <&3
    if [ "$id" = - ]; then
      outside=$((outside + 1))
    elif [ "$begins" = true ]; then
      [ "$n" = 1 ] && [ "$previous" = "$zeros" ] || bad "a chain begins, and it is not its first line"
      if [ "$offset" -gt 0 ]; then
        head -c "$offset" "$plain" > "$work/before" && hash < "$work/before"
        [ "$why" != new ] && [ "$bytes" = "$offset" ] && [ "$sha256" = "$hash" ] || bad "what stands before it was altered"
      else
        [ "$bytes" = - ] || bad "what stood before it is gone"
      fi
      case "$chains " in *" $id "*) bad "this chain has begun before" ;; esac
      [ "$outside" = 0 ] || [ -z "$chain" ] || bad "lines of no chain stand between it and the chain before it"
      [ "$offset" -gt 0 ] || [ -z "$chain" ] || [ -n "$signed" ] || bad "chain $chain before it was never signed by this key"
      chain=$id outside=0 signed=''
      : > "$work/pending"
    elif [ -z "$chain" ]; then
      [ "$outside" = 0 ] || bad "a line before it is of no chain"
      chain=$id late=$id first=$n gone=$previous
    else
      [ "$outside" = 0 ] || bad "a line before it is of no chain"
      [ "$id" = "$chain" ] || bad "it is of another chain"
      [ "$n" = $((number + 1)) ] || bad "it is line $n, after line $number"
      [ "$previous" = "$head" ] || bad "the line before it, or this one, was altered"
    fi
    if [ "$count" != - ]; then
      [ "$count" = $((n - 1)) ] && [ "$top" = "$previous" ] || bad "its checkpoint belongs elsewhere"
      signature
      signed=$count
    fi
    [ "$removed" != true ] || printf '%s\n' "$text" >> "$work/pending"
    if [ "$id" != - ]; then
      [ "${chains##* }" = "$id" ] || chains="$chains $id"
      hash < "$work/line"
      number=$n head=$hash
    fi
    offset=$((offset + ${#text} + 1))
  done < "$plain" 3< "$work/values"
  line=$((line + 1))
  [ -z "$text" ] || bad "it is cut off"
  [ "$outside" = 0 ] || bad "the lines before it are of no chain"
done
[ -n "$signed" ] || bad "chain $chain was never signed by this key"
# A `removed` line counts for its own chain, and for chains with a checkpoint by the same key. One in checkpoints.jsonl counts if the `kept` of a later
# `removed` line that counts covers it.
believed='def its($by; $id): $id == $by or any($signed[]; .id == $id);
  .chain as $here | select(all($signed[]; .id != $here.id or .found == null or $here.number < .found.first or $here.number > .found.last))'
known() { jq -c --slurpfile signed "$work/checkpoints" "$@"; }
# Accounts for the lines before the first existing one, from the last removed segment to the first.
while [ -n "$late" ] && [ "$first" -gt 1 ]; do
  known --arg id "$late" --argjson last $((first - 1)) --arg head "$gone" "$believed"' | select(any(.removed.chains[];
    .id == $id and its($here.id; .id) and .first <= .last and .last == $last and ($head == "" or .head == $head)))' "$work/said" |
    tail -n 1 > "$work/removal"
  [ -s "$work/removal" ] || break
  jq -r '.removed.chains[] | "\(.id) \(.first) \(.last)"' "$work/removal" > "$work/spans"
  while read -r id from to; do
    sort -n -k 2 "$work/kept" | awk -v id="$id" -v from="$from" -v to="$to" '$1 == id && $2 >= from && $2 <= to { print $3 }'
  done < "$work/spans" > "$work/hashes"
  from=$(jq -r --arg id "$late" --argjson last $((first - 1)) '.removed.chains[] | select(.id == $id and .last == $last) | .first' "$work/removal" | head -n 1)
  hash < "$work/hashes"
  [ "$(wc -l < "$work/hashes") $hash" = "$(jq -r '.removed.kept | "\(.lines) \(.sha256)"' "$work/removal")" ] ||
    bad "of lines $from to $((first - 1)), which were removed, there is not what was kept"
  known --slurpfile removal "$work/removal" "$believed"' | select(.removed != null and any($removal[0].removed.chains[];
    .id == $here.id and its($removal[0].chain.id; .id) and .first <= $here.number and .last >= $here.number))' "$work/lines" >> "$work/said"
  echo "removed by rule: lines $from to $((first - 1)) of chain $late"
  first=$from gone=''
done
[ -z "$late" ] || [ "$first" = 1 ] || echo "begins with line $first of chain $late: what comes before it is not here"
echo "whole: line $number of chain $chain is the last; signed up to line $signed"
