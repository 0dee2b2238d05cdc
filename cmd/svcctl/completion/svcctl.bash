# bash completion for svcctl, for bash 4 and newer, without the bash-completion package
_svcctl() {
    local line=${COMP_LINE:0:COMP_POINT} cur found word
    local -a words
    # COMP_WORDS parts words at = and : too, as in --for=ready and 2001:db8::1.
    read -ra words <<<"$line"
    [[ $line == *[[:blank:]] ]] && words+=("")
    cur=${words[${#words[@]}-1]}
    [[ $cur == --*=* ]] && cur=${cur#*=}
    found=$(svcctl __complete "${words[@]:1}" 2>/dev/null)
    local IFS=$'\n'
    COMPREPLY=()
    case $found in
        :files) COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null ;;
        :dirs) COMPREPLY=($(compgen -d -- "$cur")); compopt -o filenames 2>/dev/null ;;
        *)
            for word in $found; do
                word=${word%%$'\t'*}
                COMPREPLY+=("${word#"${cur%"${cur##*:}"}"}")
            done
            [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
            ;;
    esac
    return 0
}
complete -F _svcctl svcctl
