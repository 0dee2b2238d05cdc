package settings

import (
	"bytes"
	"cmp"
	_ "embed" // settings.txt
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Setting is a setting of the appliance, stored in a field of config.Config or of one of its groups. It can be given as a flag, an environment
// variable or a key in the configuration file.
type Setting struct {
	// Option is the flag, without a value. Repeats is set if the setting takes several values, separated by commas or given one by one.
	cli.Option
	// Described is set if Def describes the default in help and is no value. Otherwise Def is the default, as in config.Default.
	Described bool
	// ServeOnly is set if the setting does not apply to `svcctl plan`.
	ServeOnly bool
	field     string // field path in config.Config
}

// GroupPlaces is the help heading for directories and files.
const GroupPlaces = "Where things are"

// rows is the content of settings.txt, the table of settings. The comment at its start describes the columns.
//
//go:embed settings.txt
var rows string

// wordsOf has the accepted values of the settings whose values settings.txt does not list.
var wordsOf = map[string][]string{"balance": object.BalanceNames(), "log-level": {"debug", "info", "warn", "error"}}

// Settings returns all settings, in the order of help. The caller must not change them.
var Settings = sync.OnceValue(func() (all []Setting) {
	group := ""
	for line := range strings.Lines(rows) {
		line = strings.TrimSpace(line)
		cells := object.Texts(strings.Split(line, " |"), strings.TrimSpace)
		if heading, is := strings.CutPrefix(line, "# "); is {
			group = heading
		}
		if group == "" || len(cells) == 1 {
			continue
		}
		s := Setting{field: cells[1], Described: strings.HasPrefix(cells[4], "["), ServeOnly: strings.Contains(cells[3], "serve")}
		s.Option = cli.Option{Name: cells[0], Arg: cells[2], Def: strings.Trim(cells[4], "[]"), Usage: cells[5], Group: group,
			Repeats: strings.Contains(cells[3], "list"), Env: "SVCCTL_" + strings.ToUpper(strings.ReplaceAll(cells[0], "-", "_")), Key: keyOf(cells[0])}
		if strings.Contains(cells[3], "words") {
			s.Words = strings.Split(s.Arg, "|")
			if others := wordsOf[s.Name]; others != nil {
				s.Words = others
			}
		}
		all = append(all, s)
	}
	return all
})

// Options returns the options for the settings with these flag names. group is their help heading; "" keeps the heading of each setting.
func Options(group string, names ...string) (options []*cli.Option) {
	for _, name := range names {
		s := Settings()[slices.IndexFunc(Settings(), func(s Setting) bool { return s.Name == name })]
		s.Group = cmp.Or(group, s.Group)
		options = append(options, &s.Option)
	}
	return options
}

// keyOf returns the configuration file key for a flag name. Abbreviations after the first word are in upper case, as in Kubernetes: clusterCIDR.
func keyOf(name string) string {
	var b strings.Builder
	for i, part := range strings.Split(name, "-") {
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

// split splits a text at commas if the option is a list; otherwise it returns the text as the only value.
func split(o *cli.Option, text string) []string {
	if !o.Repeats {
		return []string{text}
	}
	if strings.TrimSpace(text) == "" {
		return []string{}
	}
	return object.Texts(strings.Split(text, ","), strings.TrimSpace)
}

// parsers holds the parsing functions of settings whose field is not a string, a list of strings or a bool.
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

// Store parses values into the field of c for the setting. If some entries of a list are invalid, it returns an error but still stores the valid ones,
// so that they can be validated too.
func (s *Setting) Store(c *config.Config, texts []string) error {
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
	case s.Repeats:
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

// parseLogLevel parses the name of a log level. It rejects the form INFO+2 that slog accepts.
func parseLogLevel(text string) (slog.Level, error) {
	var level slog.Level
	if words := wordsOf["log-level"]; !slices.Contains(words, text) {
		return level, fmt.Errorf("%q is not a level: give one of %s", text, strings.Join(words, ", "))
	}
	return level, level.UnmarshalText([]byte(text))
}

// Load returns the configuration for a verb. The value of each setting comes from its flag, or else from its environment variable, or else from the
// file; otherwise it is the default. A given list replaces lists of lower precedence. The error is a cli.UsageError with all problems. Settings that
// the verb does not have are not checked.
func Load(env *cli.Env, v *cli.Verb) (config.Config, error) {
	cfg := config.Default()
	cfg.Version = env.Version
	file, problems := configFile(env, v)
	sources := map[string]string{}
	for _, s := range Settings() {
		if !v.Has(s.Name) {
			continue
		}
		g, ok := Lookup(env, v.Option(s.Name), file)
		if !ok {
			continue
		}
		sources[s.Name] = g.source
		if err := s.Store(&cfg, g.Texts); err != nil {
			for _, line := range cli.Lines(err) {
				problems = append(problems, fmt.Errorf("%s: %s", g.source, line))
			}
		}
	}
	for _, err := range cli.Flatten(cfg.Validate()) {
		switch e, ok := errors.AsType[*config.Error](err); {
		case ok && !v.Has(e.Flag):
		case ok && sources[e.Flag] != "":
			problems = append(problems, fmt.Errorf("%s %q: %s", sources[e.Flag], e.Value, e.Problem))
		default:
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return cfg, &cli.UsageError{Problems: problems}
	}
	return cfg, nil
}

// Lookup returns the texts given for an option, and their source: the flag, or else the environment variable, or else file. An empty environment
// variable counts as not set. The bool is false if no value was given.
func Lookup(env *cli.Env, o *cli.Option, file map[string]given) (given, bool) {
	if o.IsSet() {
		g := given{source: "--" + o.Name}
		for _, t := range o.Texts {
			g.Texts = append(g.Texts, split(o, t)...)
		}
		return g, true
	}
	if t, ok := env.LookupEnv(o.Env); ok && t != "" {
		return given{Texts: split(o, t), source: o.Env}, true
	}
	g, ok := file[o.Key]
	return g, ok
}

// ConfigOption returns --config.
func ConfigOption() *cli.Option {
	return &cli.Option{Name: "config", Arg: cli.ArgFile, Env: ConfigEnv, Group: GroupPlaces,
		Usage: "YAML file with any of the settings below; flags and environment variables come before it"}
}

// Socket returns the path of the appliance's Unix socket, from the options of a verb.
func Socket(env *cli.Env, v *cli.Verb) (string, error) {
	cfg, err := Load(env, v)
	if err != nil {
		return "", err
	}
	return cfg.API.Socket, nil
}

// SettingsAbout is the paragraph about the sources of settings in the help of serve and plan.
const SettingsAbout = `Every flag is also an environment variable and a key of the file given with
--config: --node-name is SVCCTL_NODE_NAME and nodeName, --cluster-cidr is
SVCCTL_CLUSTER_CIDR and clusterCIDR. The flag takes precedence, then the variable, then the
file, then the default. Lists are repeated flags, text with commas, or YAML lists; a given
list replaces that of lower precedence.`

// SettingOptions returns the options for all settings. If plan is set, it omits those that only apply to serve.
func SettingOptions(plan bool) []*cli.Option {
	o := []*cli.Option{ConfigOption()}
	for _, s := range Settings() {
		if !plan || !s.ServeOnly {
			o = append(o, &s.Option)
		}
	}
	return o
}

// ConfigEnv is the environment variable that can be used instead of --config.
const ConfigEnv = "SVCCTL_CONFIG"

// MaxConfigFile is the maximum size of the configuration file in bytes.
const MaxConfigFile = 1 << 20

// configFile reads the file given with --config. It returns the values by key, and all errors in the file.
func configFile(env *cli.Env, v *cli.Verb) (map[string]given, []error) {
	path := v.Option("config").Text()
	if path == "" {
		path, _ = env.LookupEnv(ConfigEnv)
	}
	if path == "" {
		return nil, nil
	}
	data, err := watch.ReadNamed(path, MaxConfigFile)
	if err != nil {
		return nil, []error{fmt.Errorf("read the configuration: %w", err)}
	}
	return parseConfig(path, data)
}

// parseConfig parses a configuration file: one mapping from setting keys to a value or a list of values. A key without a value is ignored.
func parseConfig(path string, data []byte) (map[string]given, []error) {
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // nothing but comments
	case err != nil:
		return nil, []error{fmt.Errorf("%s: %w", path, err)}
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, []error{fmt.Errorf("%s: more than one document: put everything into the first", path)}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, []error{fmt.Errorf("%s:%d: want keys and values, as `zone: zone-a`", path, root.Line)}
	}
	known := map[string]Setting{}
	var keys []string
	for _, s := range Settings() {
		known[s.Key] = s
		keys = append(keys, s.Key)
	}
	out := map[string]given{}
	var problems []error
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		s, ok := known[key.Value]
		source := fmt.Sprintf("%s:%d: %s", path, key.Line, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			problems = append(problems, fmt.Errorf("%s:%d: there is no setting %q: %s",
				path, key.Line, key.Value, output.DidYouMean("", key.Value, keys, "`svcctl help serve` lists them")))
			continue
		case seen[key.Value] > 0:
			problems = append(problems, fmt.Errorf("%s: is on line %d already: leave one of the two", source, seen[key.Value]))
			continue
		}
		seen[key.Value] = key.Line
		texts, err := configValue(s, value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", source, err))
			continue
		}
		if texts != nil {
			out[key.Value] = given{Texts: texts, source: source}
		}
	}
	return out, problems
}

// configValue returns the texts of a YAML value for a setting; nil for null.
func configValue(s Setting, value *yaml.Node) ([]string, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil, nil
	case value.Kind == yaml.ScalarNode:
		return split(&s.Option, value.Value), nil
	case value.Kind != yaml.SequenceNode || !s.Repeats:
		want := "a single value"
		if s.Repeats {
			want = "a list of values, or one text with commas"
		}
		return nil, fmt.Errorf("want %s", want)
	}
	texts := []string{}
	for _, item := range value.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			return nil, fmt.Errorf("line %d: want a text", item.Line)
		}
		texts = append(texts, item.Value)
	}
	return texts, nil
}

// given has the texts of a setting, and their source.
type given struct {
	Texts  []string
	source string // "--zone", "SVCCTL_ZONE" or "svcctl.yaml:7: zone"
}

const GroupConnect = "Which appliance"

// The maximum sizes, in bytes, of files that an operator names: of a token, and of PEM certificates.
const (
	maxToken = 64 << 10
	MaxPEM   = 4 << 20
)

// SocketOptions returns the options that select the appliance of this box by its socket.
func SocketOptions() []*cli.Option {
	socket := Options(GroupConnect, "socket")[0]
	socket.Usage = "unix socket of the appliance"
	return []*cli.Option{{Name: "config", Arg: cli.ArgFile, Env: ConfigEnv, Group: GroupConnect,
		Usage: "YAML file of `svcctl serve`, for its socket"}, socket}
}

// ConnectOptions returns the options that select an appliance, local or remote.
func ConnectOptions() []*cli.Option {
	return append(SocketOptions(),
		&cli.Option{Name: "server", Arg: "HOST:PORT", Env: "SVCCTL_SERVER", Group: GroupConnect,
			Usage: "remote appliance, at its --listen, instead of the socket"},
		&cli.Option{Name: "token-file", Arg: cli.ArgFile, Env: "SVCCTL_TOKEN_FILE", Group: GroupConnect,
			Usage: "file with the bearer token for --server"},
		&cli.Option{Name: "token", Arg: "TOKEN", Env: "SVCCTL_TOKEN", Group: GroupConnect,
			Usage: "the bearer token itself, which others on this machine can then see"},
		&cli.Option{Name: "ca", Arg: cli.ArgFile, Env: "SVCCTL_CA", Group: GroupConnect,
			Usage: "file with the certificate that --server is checked with"},
	)
}

// NamespaceOption returns the option -n.
func NamespaceOption() *cli.Option {
	return &cli.Option{Name: "namespace", Letter: "n", Arg: "NAMESPACE", Def: "default", Env: "SVCCTL_NAMESPACE",
		Group: cli.GroupWhich, Usage: "namespace of the objects"}
}

// Given returns the text of an option and its source, the flag or the environment variable, as Lookup does. Both are "" if neither is set.
func Given(env *cli.Env, o *cli.Option) (text, source string) {
	g, given := Lookup(env, o, nil)
	if !given {
		return "", ""
	}
	return g.Texts[len(g.Texts)-1], g.source
}

// Namespace returns the namespace that a verb applies to.
func Namespace(env *cli.Env, v *cli.Verb) string {
	o := v.Option("namespace")
	if text, source := Given(env, o); source != "" && text != "" {
		return text
	}
	return o.Def
}

// Client returns a client for the appliance that the options of a verb select. It prints warnings of the appliance to stderr. If no appliance is
// selected, each call of the client returns the cli.UsageError.
func Client(env *cli.Env, v *cli.Verb) *client.Client {
	c, err := Connect(env, v)
	if err != nil {
		return &client.Client{Failed: err}
	}
	var said sync.Map // each text once, as kubectl has it: a verb may ask several times
	c.Warned = func(text string) {
		if _, before := said.LoadOrStore(text, true); !before {
			fmt.Fprintf(env.Err, "Warning: %s\n", text)
		}
	}
	return c
}

func Connect(env *cli.Env, v *cli.Verb) (*client.Client, error) {
	url, source := Given(env, v.Option("server"))
	switch socketFlag := v.Option("socket").IsSet(); {
	case socketFlag && source == "--server":
		return nil, cli.Usagef("--socket and --server name two appliances: leave one of them out")
	case url == "" || socketFlag:
		socket, err := Socket(env, v)
		if err != nil {
			return nil, err
		}
		c := client.New(socket)
		if bool(env.Packaged) && !socketFlag { // else it may be another one than that of the unit
			c.Start = env.Packaged.Serve()
		}
		return c, nil
	}
	server := client.Server{URL: url}
	token, tokenSource := Given(env, v.Option("token"))
	switch file, fileSource := Given(env, v.Option("token-file")); {
	case tokenSource == "--token" || tokenSource != "" && fileSource != "--token-file":
		server.Token = token
	case file != "":
		content, err := watch.ReadNamed(file, maxToken)
		if err != nil {
			return nil, cli.Usagef("%s: %v", fileSource, err)
		}
		if server.Token = strings.TrimSpace(string(content)); server.Token == "" {
			return nil, cli.Usagef("%s: %s is empty", fileSource, file)
		}
	}
	if ca, caSource := Given(env, v.Option("ca")); ca != "" {
		content, err := watch.ReadNamed(ca, MaxPEM)
		if err != nil {
			return nil, cli.Usagef("%s: %v", caSource, err)
		}
		server.CA = content
	}
	c, err := client.Remote(server)
	if err != nil {
		return nil, cli.Usagef("%s: %v", source, err)
	}
	return c, nil
}
