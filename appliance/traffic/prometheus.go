package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// maxSeries is the maximum number of series in a response; the ports with the most connections come first.
const maxSeries = 100_000

// Pages returns the handlers, by path, of pages in the format of Prometheus whose labels name Services and endpoints. They are separate
// from /metrics, whose number of series is bounded, so that the operator decides whether and how often to scrape them.
func (a *Queries) Pages() map[string]http.Handler {
	return map[string]http.Handler{
		"/metrics/services": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.page(w, wire.TrafficQuery{Namespace: r.URL.Query().Get("namespace")})
		}),
		"/metrics/endpoints": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := wire.TrafficQuery{Namespace: r.URL.Query().Get("namespace"), Service: r.URL.Query().Get("service"), Endpoints: true}
			if q.Namespace == "" {
				http.Error(w, "name a namespace: /metrics/endpoints?namespace=default", http.StatusBadRequest)
				return
			}
			a.page(w, q)
		}),
	}
}

// page responds with the part of the traffic that q selects.
func (a *Queries) page(w http.ResponseWriter, q wire.TrafficQuery) {
	q.Sort, q.Limit = "open", 1<<30
	seen, err := a.Traffic(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := bufio.NewWriterSize(w, 64<<10)
	if q.Endpoints {
		endpointSeries(out, seen)
	} else {
		serviceSeries(out, seen)
		egressSeries(out, seen.Egress)
	}
	_ = out.Flush() // a client that hung up is no error
}

// A family is a metric family. Each sample is computed by value from a T. more holds further labels of each sample, such as `,direction="in"`.
// Families with the same name must be adjacent.
type family[T any] struct {
	name, kind, help string
	value            func(*T) uint64
	more             string
}

func families(of, what string) []family[wire.ConnectionCounts] {
	return []family[wire.ConnectionCounts]{
		{"svcctl_" + of + "_connections_open", "gauge", "Connections of " + what + " that were answered and that neither side has closed.", func(c *wire.ConnectionCounts) uint64 { return uint64(c.Open) }, ""},
		{"svcctl_" + of + "_connections_unanswered", "gauge", "Connections to which the endpoint has sent nothing yet, of " + what + ".", func(c *wire.ConnectionCounts) uint64 { return uint64(c.Unanswered) }, ""},
	}
}

// portFamilies returns the metric families of Service ports. counted is set if the kernel counts connections.
func portFamilies(counted bool) (all []family[wire.PortTraffic]) {
	for _, f := range families("service", "a port of a Service") {
		all = append(all, family[wire.PortTraffic]{f.name, f.kind, f.help, func(p *wire.PortTraffic) uint64 { return f.value(&p.ConnectionCounts) }, ""})
	}
	all = append(all, family[wire.PortTraffic]{"svcctl_service_failed_total", "counter", "Connections to a port of a Service that an endpoint refused or never answered.", func(p *wire.PortTraffic) uint64 { return p.Failed }, ""})
	if !counted {
		return all
	}
	return append(all,
		family[wire.PortTraffic]{"svcctl_service_connections_total", "counter", "Connections that clients made to a port of a Service.", func(p *wire.PortTraffic) uint64 { return *p.Connections }, ""},
		family[wire.PortTraffic]{"svcctl_service_refused_total", "counter", "Packets to a port of a Service that were refused or dropped because no endpoint was there.", func(p *wire.PortTraffic) uint64 { return *p.Refused }, ""})
}

// endpointFamilies returns the metric families of endpoints.
func endpointFamilies(seen *wire.Traffic) (all []family[wire.EndpointTraffic]) {
	for _, f := range families("endpoint", "an endpoint") {
		all = append(all, family[wire.EndpointTraffic]{f.name, f.kind, f.help, func(e *wire.EndpointTraffic) uint64 { return f.value(&e.ConnectionCounts) }, ""})
	}
	all = append(all, family[wire.EndpointTraffic]{"svcctl_endpoint_failed_total", "counter", "Connections that the endpoint refused or never answered.", func(e *wire.EndpointTraffic) uint64 { return e.Failed }, ""})
	if seen.Flows {
		all = append(all, family[wire.EndpointTraffic]{"svcctl_endpoint_connections_total", "counter", "Connections that the endpoint got.",
			func(e *wire.EndpointTraffic) uint64 { return value(e.Flows) }, ""})
	}
	if seen.Flows && seen.NoBytes == "" {
		const name, help = "svcctl_endpoint_bytes_total", "Bytes of connections to the endpoint that clients (in) and the endpoint (out) sent, with IP headers."
		all = append(all,
			family[wire.EndpointTraffic]{name, "counter", help, func(e *wire.EndpointTraffic) uint64 { return value(e.BytesIn) }, `,direction="in"`},
			family[wire.EndpointTraffic]{name, "counter", help, func(e *wire.EndpointTraffic) uint64 { return value(e.BytesOut) }, `,direction="out"`})
	}
	return all
}

// value returns the number that n points to, 0 if n is nil.
func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// serviceSeries writes a sample of each metric family for each Service port in seen.
func serviceSeries(out io.Writer, seen *wire.Traffic) {
	all := portFamilies(seen.Counted)
	ports, left := seen.Ports, 0
	if most := maxSeries / len(all); len(ports) > most {
		ports, left = ports[:most], (len(ports)-most)*len(all)
	}
	series(out, all, len(ports), func(i int) (string, *wire.PortTraffic) { return labels(&ports[i], ""), &ports[i] })
	tail(out, seen, left)
}

// endpointSeries writes a sample of each family for each endpoint.
func endpointSeries(out io.Writer, seen *wire.Traffic) {
	type row struct {
		labels string
		counts *wire.EndpointTraffic
	}
	all := endpointFamilies(seen)
	var rows []row
	left := 0
	for i := range seen.Ports {
		p := &seen.Ports[i]
		for j := range p.Endpoints {
			if p.Endpoints[j].Relayed {
				continue // its connections are those of the listener, and have a metric: svcctl_relay_port_open
			}
			if len(rows) == maxSeries/len(all) {
				left += len(all)
				continue
			}
			rows = append(rows, row{labels(p, p.Endpoints[j].Endpoint), &p.Endpoints[j]})
		}
	}
	series(out, all, len(rows), func(i int) (string, *wire.EndpointTraffic) { return rows[i].labels, rows[i].counts })
	tail(out, seen, left)
}

// series writes the samples of all metric families for n rows. row returns the labels and the data of a row.
func series[T any](out io.Writer, all []family[T], n int, row func(i int) (labels string, of *T)) {
	for k, f := range all {
		if k == 0 || all[k-1].name != f.name {
			fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		}
		for i := range n {
			labels, of := row(i)
			_, _ = io.WriteString(out, f.name+"{"+labels+f.more+"} "+strconv.FormatUint(f.value(of), 10)+"\n")
		}
	}
}

// labels returns the label text for a Service port, or for one of its endpoints unless endpoint is "".
func labels(p *wire.PortTraffic, endpoint string) string {
	text := `namespace=` + quoted(p.Namespace) + `,service=` + quoted(p.Service) + `,port=` + quoted(p.Port) + `,protocol=` + quoted(p.Protocol)
	if endpoint != "" {
		text += `,endpoint=` + quoted(endpoint)
	}
	return text
}

// escape escapes label values for the Prometheus text format.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func quoted(value string) string { return `"` + escape.Replace(value) + `"` }

// tail writes the last two metrics: the number of series that were left out, and the time of the scan.
func tail(out io.Writer, seen *wire.Traffic, left int) {
	fmt.Fprintf(out, "# HELP svcctl_series_left_out Series that this answer has no room for.\n# TYPE svcctl_series_left_out gauge\nsvcctl_series_left_out %d\n", left)
	fmt.Fprintf(out, "# HELP svcctl_traffic_timestamp_seconds When connection tracking was read for this answer, in Unix time.\n# TYPE svcctl_traffic_timestamp_seconds gauge\nsvcctl_traffic_timestamp_seconds %.3f\n", float64(seen.At.UnixMilli())/1000)
}
