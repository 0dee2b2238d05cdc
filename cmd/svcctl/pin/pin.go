package pin

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// File is a manifest, and the edits that write allocated addresses and ports into its Services.
type File struct {
	// Services are the Services with the values to write, in the order of the text.
	Services []Service
	// Problems has an error for each Service that could not be pinned, and for a text that cannot be parsed.
	Problems []error

	path  string
	text  []byte
	lines []int // byte offsets of line starts
	json  bool
	edits []edit
}

// Service is a Service with the values to write, such as "clusterIP 10.96.0.10".
type Service struct {
	Line   int
	Key    string // "namespace/name"
	Values []string
}

// edit replaces the text between two offsets.
type edit struct {
	from, to int
	text     string
}

// Write returns a manifest with the edits that write allocated values into its Services. It calls of with "namespace/name" for the live Service. If
// the result is nil, the Service in the manifest is left as it is.
func Write(path string, text []byte, of func(key string) *object.Service) *File {
	p := &File{path: path, text: text, json: filepath.Ext(path) == ".json"}
	for at := 0; at <= len(text); {
		p.lines = append(p.lines, at)
		end := bytes.IndexByte(text[at:], '\n')
		if end < 0 {
			break
		}
		at += end + 1
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			p.Problems = append(p.Problems, fmt.Errorf("%s: %w", path, err))
			break
		}
		if len(document.Content) > 0 {
			p.object(document.Content[0], of)
		}
	}
	return p
}

// object adds the edits for a Service, or for each Service in a List. It ignores other objects.
func (p *File) object(node *yaml.Node, of func(key string) *object.Service) {
	if items := yamlField(node, "items"); items != nil && items.Kind == yaml.SequenceNode {
		for _, item := range items.Content {
			p.object(item, of)
		}
		return
	}
	if scalar(yamlField(node, "kind")) != object.KindService {
		return
	}
	meta := yamlField(node, "metadata")
	key := cmp.Or(scalar(yamlField(meta, "namespace")), "default") + "/" + scalar(yamlField(meta, "name"))
	svc := of(key)
	if svc == nil {
		return
	}
	before := len(p.edits)
	values, err := p.service(node, meta, svc)
	if err != nil {
		p.edits = p.edits[:before]
		p.Problems = append(p.Problems, fmt.Errorf("%s:%d: Service %s: %w", p.path, node.Line, key, err))
		return
	}
	if len(values) > 0 {
		p.Services = append(p.Services, Service{node.Line, key, values})
	}
}

// service adds edits for the addresses and node ports that a Service's document lacks. It returns the values.
func (p *File) service(node, meta *yaml.Node, svc *object.Service) (values []string, err error) {
	spec := yamlField(node, "spec")
	if spec == nil {
		return nil, errors.New("it has no spec: write one, if only with its ports")
	}
	set := func(at *yaml.Node, name, value string) {
		if err == nil {
			if err = p.set(at, name, value); err == nil {
				values = append(values, name+" "+value)
			}
		}
	}
	has := func(at *yaml.Node, name string) bool {
		n := yamlField(at, name)
		return n != nil && (n.Kind != yaml.ScalarNode || n.Value != "" && n.Tag != "!!null" && n.Value != "0")
	}
	// Each line is inserted in front of the others: the last one comes first.
	if n := svc.Spec.HealthCheckNodePort; n != 0 && !has(spec, "healthCheckNodePort") {
		set(spec, "healthCheckNodePort", fmt.Sprint(n))
	}
	p.ingress(spec, meta, svc, has, set)
	ips := svc.Spec.ClusterIPs
	if len(ips) > 1 && len(sequence(yamlField(spec, "clusterIPs"))) < len(ips) {
		set(spec, "clusterIPs", `["`+strings.Join(ips, `", "`)+`"]`)
	}
	if len(ips) > 0 && ips[0] != object.ClusterIPNone && !has(spec, "clusterIP") {
		set(spec, "clusterIP", `"`+ips[0]+`"`)
	}
	for i, port := range sequence(yamlField(spec, "ports")) {
		if i < len(svc.Spec.Ports) && svc.Spec.Ports[i].NodePort != 0 && !has(port, "nodePort") {
			set(port, "nodePort", fmt.Sprint(svc.Spec.Ports[i].NodePort))
		}
	}
	return values, err
}

// ingress adds an edit for the load balancer IPs that no annotation requests: one is written to spec.loadBalancerIP, two to the annotation with the
// key annotation.LoadBalancerIPs.
func (p *File) ingress(spec, meta *yaml.Node, svc *object.Service, has func(*yaml.Node, string) bool, set func(*yaml.Node, string, string)) {
	ips := svc.IngressIPs()
	annotations := yamlField(meta, "annotations")
	for _, a := range annotation.Addresses(svc.Metadata.Annotations) {
		ips = slices.DeleteFunc(ips, func(ip string) bool { return ip == strings.TrimSpace(a.Text) })
	}
	switch {
	case len(ips) == 0 || svc.Spec.Type != object.TypeLoadBalancer:
	case len(ips) == 1 && !has(spec, "loadBalancerIP"):
		set(spec, "loadBalancerIP", `"`+ips[0]+`"`)
	case len(ips) == 1 || has(annotations, annotation.LoadBalancerIPs): // the manifest has it
	case annotations != nil:
		set(annotations, annotation.LoadBalancerIPs, `"`+strings.Join(ips, ",")+`"`)
	default:
		set(meta, "annotations", `{"`+annotation.LoadBalancerIPs+`": "`+strings.Join(ips, ",")+`"}`)
	}
}

// set adds an edit that inserts a field at the start of a mapping, in the style of the mapping, or replaces an empty field of that name.
func (p *File) set(at *yaml.Node, name, value string) error {
	switch {
	case at == nil || at.Kind != yaml.MappingNode:
		return fmt.Errorf("%s cannot be written, as it is to be in something that is no mapping, or an alias: write %s: %s", name, name, value)
	case yamlField(at, name) != nil:
		old := yamlField(at, name)
		if old.Kind == yaml.SequenceNode || old.Anchor != "" {
			return fmt.Errorf("it has a %s that is not whole: write %s: %s", name, name, value)
		}
		from := p.offset(old.Line, old.Column)
		length := len(old.Value)
		if old.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			length += 2
		}
		if length == 0 {
			return fmt.Errorf("its %s is empty: remove the line", name)
		}
		p.edits = append(p.edits, edit{from, from + length, value})
		return nil
	case len(at.Content) == 0:
		return fmt.Errorf("%s cannot be written into an empty mapping: write %s: %s", name, name, value)
	}
	first := at.Content[0]
	offset := p.offset(first.Line, first.Column)
	key := name
	if p.json || strings.ContainsAny(name, "/") {
		key = `"` + name + `"`
	}
	if at.Style&yaml.FlowStyle != 0 || p.json {
		p.edits = append(p.edits, edit{offset, offset, key + ": " + value + ", "})
		return nil
	}
	p.edits = append(p.edits, edit{offset, offset, key + ": " + value + "\n" + strings.Repeat(" ", first.Column-1)})
	return nil
}

// offset returns the byte offset of a line and column. Both begin at 1; columns count characters.
func (p *File) offset(line, column int) int {
	at := p.lines[line-1]
	for range column - 1 {
		_, size := utf8.DecodeRune(p.text[at:])
		at += size
	}
	return at
}

// Text returns the manifest with the edits applied. It returns an error if the new text cannot be decoded, or does not contain the same objects.
func (p *File) Text() ([]byte, error) {
	text := p.edited()
	before := manifest.Decode(p.path, p.text, manifest.DefaultLimits())
	after := manifest.Decode(p.path, text, manifest.DefaultLimits())
	if after.Err != nil {
		return nil, errors.New(after.Err.String())
	}
	if len(after.Documents) != len(before.Documents) || len(after.Problems) != len(before.Problems) {
		return nil, errors.New("the new text could not be parsed: write the values by hand, `svcctl admin pin --dry-run` lists them")
	}
	for i := range after.Documents {
		if object.RefOf(after.Documents[i].Object) != object.RefOf(before.Documents[i].Object) {
			return nil, errors.New("the new text has other objects: write the values by hand")
		}
	}
	return text, nil
}

// edited returns the text with the edits applied.
func (p *File) edited() []byte {
	slices.SortStableFunc(p.edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	var out bytes.Buffer
	at := 0
	// Of those at one place the last one comes first.
	for i := 0; i < len(p.edits); {
		n := i
		for n < len(p.edits) && p.edits[n].from == p.edits[i].from {
			n++
		}
		out.Write(p.text[at:p.edits[i].from])
		at = p.edits[i].from
		for _, e := range slices.Backward(p.edits[i:n]) {
			out.WriteString(e.text)
			at = max(at, e.to)
		}
		i = n
	}
	out.Write(p.text[at:])
	return out.Bytes()
}

// yamlField returns the value of a field of a mapping; nil if there is none.
func yamlField(node *yaml.Node, name string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i+1]
		}
	}
	return nil
}

func scalar(node *yaml.Node) string {
	if node == nil || node.Kind != yaml.ScalarNode {
		return ""
	}
	return node.Value
}

func sequence(node *yaml.Node) []*yaml.Node {
	if node == nil || node.Kind != yaml.SequenceNode {
		return nil
	}
	return node.Content
}
