# fish completion for svcctl
function __svcctl_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l prefix (string match -r -- '^--[^=]*=' $words[-1])
    set -q prefix[1]; or set prefix ''
    set -l found (svcctl __complete $words[2..-1] 2>/dev/null)
    switch "$found[1]"
        case :files
            __fish_complete_path $words[-1]
        case :dirs
            __fish_complete_directories $words[-1]
        case '?*'
            printf '%s\n' $prefix$found
    end
end
complete -c svcctl -f -a '(__svcctl_complete)'
