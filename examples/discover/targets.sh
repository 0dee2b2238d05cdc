#!/bin/sh
# Writes the targets of one job from lines "ADDRESS PORT", for example from a database or an inventory:
#     * * * * * root inventory --role web | /srv/targets.sh web /srv/web.json
# A new file is renamed into place, and a command that failed leaves the earlier one: an empty list would remove the last server.
set -eu
job=$1 file=$2
new=$(mktemp "$file.XXXXXX")
trap 'rm -f "$new"' EXIT
awk -v job="$job" '
    NF == 0 { next }
    NF != 2 { print "targets: line " NR ": must be ADDRESS PORT" >"/dev/stderr"; bad = 1; exit 1 }
    { list = list (n++ ? ", " : "") "\"" ($1 ~ /:/ ? "[" $1 "]" : $1) ":" $2 "\"" }
    END {
        if (bad) exit 1
        if (!n) { print "targets: no line: the file stays" >"/dev/stderr"; exit 1 }
        printf "[{\"targets\": [%s], \"labels\": {\"job\": \"%s\"}}]\n", list, job
    }' >"$new"
chmod 644 "$new"
mv "$new" "$file"
