package settings

import (
	"cmp"
	_ "embed" // settings.txt
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/store/object"
)

// Setting is one field of config.Config or of a group of it: a flag, an environment variable and a
// key of the configuration file.
type Setting struct {
	Name  string // of the flag
	Arg   string // what stands for the value in help; "" for a switch
	Usage string
	Def   string // the default, equal to config.Default's
	Shown string // what help shows as the default instead of Def
	Group string
	Words []string // the values it takes, when they are few
	// List settings take several values, parted by commas or given one by one.
	List bool
	// ServeOnly settings mean nothing to `svcctl plan`.
	ServeOnly bool
	field     string // of config.Config
}

// GroupPlaces is the heading of directories and files in help.
const GroupPlaces = "Where things are"

// rows has the table, and describes its form.
//
//go:embed settings.txt
var rows string

// wordsOf has the words of settings whose value is not made of them.
var wordsOf = map[string][]string{"balance": object.BalanceNames(), "log-level": {"debug", "info", "warn", "error"}}

// Settings returns all settings, in the order of help. The caller must not change them.
var Settings = sync.OnceValue(func() (all []Setting) {
	group := ""
	for line := range strings.Lines(rows) {
		line = strings.TrimSpace(line)
		cells := strings.Split(line, " |")
		if heading, is := strings.CutPrefix(line, "# "); is {
			group = heading
		}
		if group == "" || len(cells) == 1 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		s := Setting{Name: cells[0], field: cells[1], Arg: cells[2], Def: cells[4], Usage: cells[5], Group: group,
			List: strings.Contains(cells[3], "list"), ServeOnly: strings.Contains(cells[3], "serve")}
		if strings.Contains(cells[3], "words") {
			s.Words = strings.Split(s.Arg, "|")
			if others := wordsOf[s.Name]; others != nil {
				s.Words = others
			}
		}
		if strings.HasPrefix(s.Def, "[") {
			s.Def, s.Shown = "", strings.Trim(s.Def, "[]")
		}
		all = append(all, s)
	}
	return all
})

// Named returns the settings of some flags, in their order.
func Named(names ...string) (some []Setting) {
	for _, name := range names {
		i := slices.IndexFunc(Settings(), func(s Setting) bool { return s.Name == name })
		some = append(some, Settings()[i])
	}
	return some
}

// Options returns the flags of some settings, under a heading, or under their own for "".
func Options(group string, names ...string) (options []*cli.Option) {
	for _, s := range Named(names...) {
		s.Group = cmp.Or(group, s.Group)
		options = append(options, s.Option())
	}
	return options
}

// Env returns the environment variable of a setting: SVCCTL_NODE_NAME.
func (s *Setting) Env() string {
	return "SVCCTL_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Key returns the key of a setting in the configuration file: nodeName. Abbreviations
// that are not the first word keep their capitals, as in Kubernetes: clusterCIDR.
func (s *Setting) Key() string {
	var b strings.Builder
	for i, part := range strings.Split(s.Name, "-") {
		switch {
		case i == 0:
			b.WriteString(part)
		case part == "ip" || part == "cidr":
			b.WriteString(strings.ToUpper(part))
		default:
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// Option is the flag of a setting.
func (s *Setting) Option() *cli.Option {
	o := &cli.Option{Name: s.Name, Arg: s.Arg, Usage: s.Usage, Def: s.Def, Env: s.Env(), Key: s.Key(), Group: s.Group, Words: s.Words, Repeats: s.List}
	if s.Shown != "" {
		o.Def = s.Shown
	}
	return o
}

// Split parts the values of a list setting at commas.
func (s *Setting) Split(text string) []string {
	if !s.List {
		return []string{text}
	}
	if strings.TrimSpace(text) == "" {
		return []string{}
	}
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// parsers read the values of settings whose field is neither text, a list of texts nor a switch.
var parsers = map[string]func(texts []string) (any, error){
	"nodeport-addresses":          several(config.ParseNodePortAddresses),
	"service-cluster-ip-range":    several(config.ParsePrefixes),
	"service-node-port-range":     single(config.ParsePortRange),
	"cluster-cidr":                several(config.ParsePrefixes),
	"egress-from":                 several(config.ParsePrefixes),
	"announce-table":              single(config.ParseTable),
	"load-balancer-pool":          several(config.ParseAddrRanges),
	"load-balancer-internal-pool": several(config.ParseAddrRanges),
	"load-balancer-internal-from": several(config.ParseInternalFrom),
	"external-ip-range":           several(config.ParseExternalIPRanges),
	"health-check-source-ports":   single(config.ParseSourcePorts),
	"relay-ports":                 single(config.ParsePortRange),
	"source-set":                  several(config.ParseSourceSets),
	"dns-upstream":                several(config.ParseAddrPorts),
	"dns-client-namespaces":       several(config.ParseClientNamespaces),
	"log-level":                   single(parseLogLevel),
}

func several[T any](parse func([]string) (T, error)) func([]string) (any, error) {
	return func(texts []string) (any, error) { return parse(texts) }
}

func single[T any](parse func(string) (T, error)) func([]string) (any, error) {
	return func(texts []string) (any, error) { return parse(texts[len(texts)-1]) }
}

// Set reads the values given, one for a setting that is no list. The good entries of a list that has bad ones are kept, so that they
// are judged too.
func (s *Setting) Set(c *config.Config, texts []string) error {
	field := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(s.field, ".") {
		field = field.FieldByName(name)
	}
	switch parse := parsers[s.Name]; {
	case parse != nil:
		v, err := parse(texts)
		if of := reflect.ValueOf(v); err == nil || of.Kind() == reflect.Slice && of.Len() > 0 {
			field.Set(of)
		}
		return err
	case s.List:
		field.Set(reflect.ValueOf(texts))
	case field.Kind() == reflect.Bool:
		last := texts[len(texts)-1]
		on, err := strconv.ParseBool(last)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", last)
		}
		field.SetBool(on)
	default:
		field.SetString(texts[len(texts)-1])
	}
	return nil
}

// parseLogLevel reads a level; slog's own forms, as INFO+2, are not among them.
func parseLogLevel(text string) (slog.Level, error) {
	var level slog.Level
	if words := wordsOf["log-level"]; !slices.Contains(words, text) {
		return level, fmt.Errorf("%q is not a level: give one of %s", text, strings.Join(words, ", "))
	}
	return level, level.UnmarshalText([]byte(text))
}
