#compdef svcctl
# zsh completion for svcctl
_svcctl() {
  local -a found
  found=(${(f)"$(svcctl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  [[ $words[CURRENT] == --*=* ]] && compset -P '*='
  case $found[1] in
    :files) _files ;;
    :dirs) _files -/ ;;
    ?*)
      found=(${found//:/\\:})
      found=(${found/$'\t'/:})
      _describe -V svcctl found
      ;;
  esac
}
if [ "$funcstack[1]" = _svcctl ]; then
  _svcctl "$@"
else
  compdef _svcctl svcctl
fi
