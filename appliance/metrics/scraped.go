package metrics

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

//go:embed scraped.txt
var scrapedText string

// scrapedRows parses scraped.txt: the descriptions of metrics by section and name.
var scrapedRows = sync.OnceValue(func() map[string]map[string]*prometheus.Desc {
	sections := map[string]map[string]*prometheus.Desc{}
	var rows map[string]*prometheus.Desc
	for line := range strings.SplitSeq(scrapedText, "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			rows = map[string]*prometheus.Desc{}
			sections[strings.Trim(line, "[]")] = rows
		default:
			name, help, _ := strings.Cut(line, " ")
			name, list, labeled := strings.Cut(strings.TrimSuffix(name, "}"), "{")
			var labels []string
			if labeled {
				labels = strings.Split(list, ",")
			}
			rows[name] = prometheus.NewDesc(name, help, labels, nil)
		}
	}
	return sections
})

// Samples takes the values of one section of scraped.txt at a scrape.
type Samples struct {
	rows map[string]*prometheus.Desc
	out  chan<- prometheus.Metric
}

// Set adds the value of a metric of the section. labels are the values of its labels, in the order of scraped.txt.
func (s Samples) Set(name string, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	s.out <- prometheus.MustNewConstMetric(s.rows[name], kind, value, labels...)
}

// SetIf adds 1 or 0.
func (s Samples) SetIf(name string, is bool, labels ...string) {
	s.Set(name, map[bool]float64{true: 1}[is], labels...)
}

// Histogram adds a histogram; buckets has the counts by upper bound.
func (s Samples) Histogram(name string, count uint64, sum float64, buckets map[float64]uint64, labels ...string) {
	s.out <- prometheus.MustNewConstHistogram(s.rows[name], count, sum, buckets, labels...)
}

// Scraped registers a section of scraped.txt. read is called at each scrape and adds all values, so that the values of
// one scrape belong together. Scraped is called at most once for a section.
func (m *Metrics) Scraped(section string, read func(Samples)) {
	m.registry.MustRegister(&scraped{scrapedRows()[section], read})
}

type scraped struct {
	rows map[string]*prometheus.Desc
	read func(Samples)
}

// Describe implements prometheus.Collector.
func (s *scraped) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range s.rows {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *scraped) Collect(out chan<- prometheus.Metric) { s.read(Samples{s.rows, out}) }
