#!/bin/sh
# Writes a manifest for the prefixes that a provider delegates, from a template. The hook of a DHCP client calls it:
#     delegated-prefix.sh TEMPLATE FILE PREFIX/LENGTH,SECONDS...
# SECONDS is the valid lifetime, or "infinity". A prefix that is not named again stays in the file until its lifetime has ended, so that
# clients that have its address are served. For @{TEXT} in the template there is TEXT for each prefix, the newest first, with commas
# between them: in TEXT, PREFIX is the first /64 of the prefix. A new file is renamed into place; without a valid prefix it stays.
set -eu
[ $# -ge 3 ] || { echo "usage: $0 TEMPLATE FILE PREFIX/LENGTH,SECONDS..." >&2; exit 2; }
template=$1 file=$2
shift 2
new=$(mktemp "$(dirname "$file")/.delegated-prefix.XXXXXX")
trap 'rm -f "$new"' EXIT
awk -v now="${NOW:-$(date +%s)}" -v given="$*" -v file="$file" '
    function fail(text) { print "delegated-prefix: " text >"/dev/stderr"; bad = 1; exit 1 }
    # first64 returns the first four groups of a prefix.
    function first64(text, part, head, tail, i, n, groups) {
        if (text !~ "^[0-9a-fA-F:]+/[0-9]+$") fail(text " is not a prefix of IPv6, as 2001:db8:12::/56")
        split(text, part, "/")
        if (part[2] > 64) fail(text " is smaller than a /64")
        i = index(part[1], "::")
        n = split(i ? substr(part[1], 1, i - 1) : part[1], head, ":")
        if (!i && n != 8) fail(text " is not a prefix of IPv6, as 2001:db8:12::/56")
        if (i && n < 4 && split(substr(part[1], i + 2), tail, ":") > 4) fail(text ": write it with its zeros at the end left out")
        groups = ""
        for (i = 1; i <= 4; i++) groups = groups (i > 1 ? ":" : "") (i <= n ? head[i] : "0")
        return groups
    }
    function add(prefix, until) {
        if (prefix in seen || until != "infinity" && until <= now) return
        seen[prefix] = 1
        first[++count] = first64(prefix)
        kept = kept "# delegated: " prefix " until " until "\n"
    }
    BEGIN {
        n = split(given, list, " ")
        for (i = 1; i <= n; i++) {
            if (split(list[i], pair, ",") != 2 || pair[2] !~ /^([0-9]+|infinity)$/) fail(list[i] " is not PREFIX/LENGTH,SECONDS")
            add(pair[1], pair[2] == "infinity" || pair[2] >= 4294967295 ? "infinity" : sprintf("%.0f", now + pair[2]))
            if (pair[2] == 0) seen[pair[1]] = 1 # the provider takes it back
        }
        while ((getline line <file) > 0) if (sub(/^# delegated: /, "", line)) { split(line, pair, " "); add(pair[1], pair[3]) }
        if (!count) fail("no prefix is valid: the file stays")
        printf "%s", kept
    }
    {
        while (match($0, /@\{[^}]*\}/)) {
            text = substr($0, RSTART + 2, RLENGTH - 3)
            all = ""
            for (i = 1; i <= count; i++) {
                one = text
                gsub(/PREFIX/, first[i], one)
                all = all (i > 1 ? "," : "") one
            }
            $0 = substr($0, 1, RSTART - 1) all substr($0, RSTART + RLENGTH)
        }
        print
    }
    END { if (bad) exit 1 }' "$template" >"$new"
chmod 644 "$new"
mv "$new" "$file"
