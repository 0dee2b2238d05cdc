package metrics

import (
	"strings"
	"testing"
)

func TestDNSAnswers(t *testing.T) {
	m := New("v1.2.3")
	if strings.Contains(scrape(t, m), "svcctl_dns") {
		t.Error("numbers of DNS without DNS")
	}
	count := m.DNSAnswers([]string{"success", "limited"})
	count("success")
	count("unknown")
	text := scrape(t, m)
	for _, want := range []string{`svcctl_dns_answers_total{result="success"} 1`, `svcctl_dns_answers_total{result="limited"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "unknown") {
		t.Error("a result that was not announced has a number")
	}
}
