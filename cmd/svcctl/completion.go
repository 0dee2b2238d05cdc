package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
)

func (p *program) completionVerb() *verb {
	return &verb{
		name:    "completion",
		summary: "print a completion script for bash, zsh or fish",
		args:    "bash|zsh|fish",
		about: `The script completes verbs, flags, the values of flags with a fixed set, kinds,
and, from the appliance, the names of namespaces and objects.`,
		words: []string{"bash", "zsh", "fish"},
		examples: []example{
			{"For this shell.", "source <(svcctl completion bash)"},
			{"For every bash on this machine.", "svcctl completion bash > /etc/bash_completion.d/svcctl"},
			{"For zsh, in a directory of $fpath.", "svcctl completion zsh > /usr/local/share/zsh/site-functions/_svcctl"},
			{"For fish.", "svcctl completion fish > ~/.config/fish/completions/svcctl.fish"},
		},
		run: p.runCompletion,
	}
}

// runCompletion prints the script of a shell.
func (p *program) runCompletion(_ context.Context, v *verb, args []string) error {
	if len(args) != 1 {
		return usagef("completion for which shell? Give one of %s", strings.Join(v.words, ", "))
	}
	verbs := p.verbs()
	for _, v := range verbs {
		if v.name == "help" {
			for _, w := range verbs {
				v.words = append(v.words, w.name)
			}
		}
	}
	switch args[0] {
	case "bash":
		return p.print(bashCompletion(verbs))
	case "zsh":
		return p.print(zshCompletion(verbs))
	case "fish":
		return p.print(fishCompletion(verbs))
	}
	return usagef("there is no completion for %q: give one of %s", args[0], strings.Join(v.words, ", "))
}

// bashCompletion is a script for bash 4 and newer, without the bash-completion package.
func bashCompletion(verbs []*verb) string {
	var names []string
	var cases, values strings.Builder
	for _, v := range verbs {
		names = append(names, v.name)
		words := append([]string{"--help"}, v.words...)
		for _, o := range v.options {
			words = append(words, "--"+o.name)
			bashValues(&values, v, o)
		}
		sort.Strings(words)
		ask := ""
		if takesObjects(v) {
			ask = " ask=1"
		}
		fmt.Fprintf(&cases, "        %s) words=%q%s ;;\n", v.name, strings.Join(words, " "), ask)
	}
	return fmt.Sprintf(`# bash completion for svcctl
_svcctl_ask() {
    svcctl %s "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null
}
_svcctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= words= ask= i
    COMPREPLY=()
    # To bash, --flag=value is three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -* ]] || { verb=${COMP_WORDS[i]}; break; }
    done
    case "$verb $prev" in
%s    esac
    case $verb in
        "") words=%q ;;
%s    esac
    [[ $ask && $cur != -* ]] && words=$(_svcctl_ask)
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _svcctl svcctl
`, completeName, values.String(), strings.Join(append(names, "--help", "--version"), " "), cases.String())
}

// bashValues writes how the value of a verb's flag is completed.
func bashValues(b *strings.Builder, v *verb, o *option) {
	if o.arg == "" || o.optional {
		return
	}
	var patterns []string
	for _, flag := range o.flags() {
		patterns = append(patterns, fmt.Sprintf("%q", v.name+" "+flag))
	}
	// A file name may have blanks: only a newline parts them.
	const files = `local IFS=$'\n'; COMPREPLY=($(compgen %s -- "$cur")); compopt -o filenames 2>/dev/null; `
	reply := ""
	switch {
	case len(o.words) > 0:
		reply = fmt.Sprintf(`COMPREPLY=($(compgen -W %q -- "$cur")); `, strings.Join(o.words, " "))
	case o.name == "namespace":
		reply = `COMPREPLY=($(compgen -W "$(_svcctl_ask)" -- "$cur")); `
	case o.arg == argDir:
		reply = fmt.Sprintf(files, "-d")
	case o.isPath():
		reply = fmt.Sprintf(files, "-f")
	}
	fmt.Fprintf(b, "        %s) %sreturn ;;\n", strings.Join(patterns, "|"), reply)
}

// isPath reports whether the value of an option is the path of a file.
func (o *option) isPath() bool { return o.arg == argFile || o.arg == argPath || o.arg == "FILE|DIR" }

// zshCompletion is a script for zsh's compsys.
func zshCompletion(verbs []*verb) string {
	var list, cases strings.Builder
	for _, v := range verbs {
		fmt.Fprintf(&list, "    %s\n", shellQuote(v.name+":"+v.summary))
		fmt.Fprintf(&cases, "    %s) _arguments", v.name)
		for _, o := range v.options {
			fmt.Fprintf(&cases, " \\\n      %s", zshOption(o))
		}
		cases.WriteString(" \\\n      '--help[explain the verb]'")
		if len(v.words) > 0 {
			fmt.Fprintf(&cases, " \\\n      %s", shellQuote("1:what:("+strings.Join(v.words, " ")+")"))
		}
		if takesObjects(v) {
			cases.WriteString(" \\\n      '*:object:_svcctl_ask'")
		}
		cases.WriteString(" ;;\n")
	}
	return fmt.Sprintf(`#compdef svcctl
# zsh completion for svcctl
_svcctl_ask() {
  compadd -- ${(f)"$(svcctl %s "${(@)words[1,CURRENT]}" 2>/dev/null)"}
}
_svcctl() {
  local -a verbs
  verbs=(
%s  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    [[ $words[2] == -* ]] && compadd -- --help --version
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
%s  esac
}
if [ "$funcstack[1]" = _svcctl ]; then
  _svcctl "$@"
else
  compdef _svcctl svcctl
fi
`, completeName, list.String(), cases.String())
}

// zshOption is an option as _arguments takes it.
func zshOption(o *option) string {
	usage := strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`, "`", "").Replace(o.usage)
	// What follows a name: "=" a value behind it or in the next word, "=-" only behind it.
	follows, value := "", ""
	if o.arg != "" {
		follows, value = "=", ":"+o.name+":"
		if o.optional {
			follows, value = "=-", ":"+value
		}
		switch {
		case len(o.words) > 0:
			value += "(" + strings.Join(o.words, " ") + ")"
		case o.arg == argDir:
			value += "_files -/"
		case o.isPath():
			value += "_files"
		case o.name == "namespace":
			value += "_svcctl_ask"
		default:
			value += " "
		}
	}
	var all []string
	for _, name := range o.flags() {
		if !strings.HasPrefix(name, "--") {
			follows = ""
		}
		all = append(all, shellQuote("*"+name+follows+"["+usage+"]"+value))
	}
	return strings.Join(all, " ")
}

// flags are the option's names with their dashes.
func (o *option) flags() []string {
	flags := []string{"--" + o.name}
	if o.letter != "" {
		flags = append(flags, "-"+o.letter)
	}
	return flags
}

// fishCompletion is a script for fish.
func fishCompletion(verbs []*verb) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# fish completion for svcctl
function __svcctl_ask
    set -l words (commandline -opc) (commandline -ct)
    svcctl %s $words[2..-1] 2>/dev/null
end
complete -c svcctl -f
`, completeName)
	b.WriteString("complete -c svcctl -n __fish_use_subcommand -l version -d 'print the version'\n")
	b.WriteString("complete -c svcctl -l help -d 'explain the verb'\n")
	for _, v := range verbs {
		fmt.Fprintf(&b, "complete -c svcctl -n __fish_use_subcommand -a %s -d %s\n", v.name, shellQuote(v.summary))
		inside := shellQuote("__fish_seen_subcommand_from " + v.name)
		if len(v.words) > 0 {
			fmt.Fprintf(&b, "complete -c svcctl -n %s -a %s\n", inside, shellQuote(strings.Join(v.words, " ")))
		}
		if takesObjects(v) {
			fmt.Fprintf(&b, "complete -c svcctl -n %s -a '(__svcctl_ask)'\n", inside)
		}
		for _, o := range v.options {
			fmt.Fprintf(&b, "complete -c svcctl -n %s -l %s", inside, o.name)
			if o.letter != "" {
				b.WriteString(" -s " + o.letter)
			}
			switch {
			case o.arg == "" || o.optional && len(o.words) == 0:
			case o.optional:
				b.WriteString(" -f -a " + shellQuote(strings.Join(o.words, " ")))
			case len(o.words) > 0:
				b.WriteString(" -x -a " + shellQuote(strings.Join(o.words, " ")))
			case o.arg == argDir:
				b.WriteString(" -x -a '(__fish_complete_directories)'")
			case o.isPath():
				b.WriteString(" -r -F")
			case o.name == "namespace":
				b.WriteString(" -x -a '(__svcctl_ask)'")
			default:
				b.WriteString(" -x")
			}
			b.WriteString(" -d " + shellQuote(strings.ReplaceAll(o.usage, "`", "")) + "\n")
		}
	}
	return b.String()
}

// shellQuote is s in single quotes, which bash, zsh and fish read alike as long
// as s has none itself: they become typographic ones.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", "’") + "'" }
