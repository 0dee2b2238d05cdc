package reconcile

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// doors are a rig with the API, its users, and a Part that reports what a test says.
type doors struct {
	*rig
	NopPart
	program, socket string
	reported        []resolve.Problem
}

func (*doors) Name() string                  { return "test" }
func (d *doors) Problems() []resolve.Problem { return d.reported }

// quiet stands for connections of which there are none.
type quiet struct{}

func (quiet) Traffic(wire.TrafficQuery) (*wire.Traffic, error) { return &wire.Traffic{}, nil }
func (quiet) Connections(wire.ConnectionQuery) (*wire.Connections, error) {
	return &wire.Connections{}, nil
}
func (quiet) Kill(uint32) (*wire.Connection, error)                  { return nil, nil }
func (quiet) Clients(string, int) (c wire.ServiceClients, err error) { return c, nil }
func (quiet) Graph(string, bool) (g wire.TrafficGraph)               { return g }
func (quiet) Services() (map[string]*wire.ServiceTraffic, *wire.ServiceTraffic, error) {
	return nil, &wire.ServiceTraffic{}, nil
}

// newDoors serves the API of a rig until the test ends.
func newDoors(t *testing.T, program string) *doors {
	d := &doors{rig: newRig(t), program: program, socket: filepath.Join(t.TempDir(), "sock")}
	d.cfg.API.Socket = d.socket
	d.opts.Parts = append(d.opts.Parts, d)
	log := slog.New(slog.DiscardHandler)
	server, err := apiserver.Open(&d.cfg, d.store, d.board, apiserver.Views{Grants: d.grants, Checked: noChecks{}.State, Conditions: d.board.Conditions(), Traffic: quiet{}}, d.metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- task.Run(ctx, log, server.Tasks(log)...) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, server.Close()); err != nil {
			t.Error(err)
		}
	})
	d.host()
	return d
}

// run runs the program, with the loop beside it. It returns both outputs.
func (d *doors) run(stdin string, args ...string) (out string, code int) {
	d.t.Helper()
	command := exec.Command(d.program, args...)
	command.Env = append(os.Environ(), "SVCCTL_SOCKET="+d.socket)
	command.Stdin = strings.NewReader(stdin)
	ended := make(chan struct{})
	var text []byte
	go func() { text, _ = command.CombinedOutput(); close(ended) }()
	for {
		select {
		case <-ended:
			return string(text), command.ProcessState.ExitCode()
		case <-d.store.Changed():
			d.step()
		}
	}
}

// page is the dashboard's list of Services.
func (d *doors) page() string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket)
	}}}
	answer, err := client.Get("http://svcctl/dashboard/services")
	if err != nil {
		d.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return html.UnescapeString(string(body))
}

// inRow are the words of the dashboard for states.
var inRow = map[string]string{"fails": "pill bad\">✗ ", "stale": "✗ Not in force", "idle": "▲ No endpoint", "warning": "pill warn\">▲ ", "answers": "✓ Answers"}

// Reasons that Test817 reports through a Part, as their facts need more than files and a kernel: each is made for real in
// a test of its package. A new Reason comes into the list of conditions that are made, or here.
const elsewhere = `EndpointsNotRead EndpointsStale EndpointsEmpty NoSuchPort FailingOpen EndpointRefuses EndpointSilent EjectBlind EndpointDown EndpointFull ProbeRefused CheckNotMade
	ChecksLate BadEndpointAddress SharedAddress RangeFull OutsideRange OutsideExternalIPRange ServiceRange NotUnicast FamilyNotServed
	PortInUse NotInternal RangeNotServed NotAnnounced NotAdvertised Drained AnnouncerMissing AddressConflict GroupDisagrees PeerDown Announcer
	BadConfiguration BoxesDiffer SharedEndpoint NoAddress ReplyPaths SecretUnusable SecretNotInForce CertificateExpires Certificate BackendUnchecked NoOCSPResponse NotRelayed
	RelayLoop RelayFull LoopbackListenFailed NotLoopback ProtocolNotRelayed NamesNothing FailedToStartServiceHealthcheck UnknownValue
	InvalidAnnotation UnknownSourceSet InvalidSourceSets SourceSet NotServed NotSupported LimitNeverReached StickyTwice WeightOfNobody
	WeightsUnused TooManyEndpoints RetrySame RangeByHash UnreadableAccess ServiceHasSelector NotMirrored BridgedEndpoints Encoding
	LimitExceeded DuplicateKey WrongType Required UnsupportedVersion AmbiguousText IgnoredField FieldValueRequired
	FieldValueNotSupported FieldValueForbidden FieldValueDuplicate FieldValueTooLong FieldValueTooMany Unmerged Unusual Unpinned
	Unreadable DirectoryUnavailable Polling LastGoodNotSaved GitLock MassRemovalHeld UnknownServicesHeld NotConfirmed TrialHeldBack
	RolloutStopped DiskFailed DiskFull RefusedByKernel ForeignInterference Host StaleConnections NoRetry NoFlows ConnectionLog NoFeedback
	NotCounted SourceDiffers SourceBehind SourceHasNoReader FleetTokens FleetReport FleetForeign FleetReplica Conflict GatewayNotProgrammed
	ListenerNotValid RouteNotAccepted RouteUnresolved EgressPorts FastPathUnused FastPath FastPathKernel`

// Test817_doors_agree: each condition is made and repaired, and status, wait, apply --wait, explain, the dashboard, the
// metrics, the alert rules and the conditions of the object never disagree on whether the Service answers.
func Test817_doors_agree(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program for each state")
	}
	program, err := netlab.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web%s}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80, name: http}]%s}\n"
	const slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{port: 8080, name: %s}]\nendpoints: [%s]\n"
	one := "{addresses: [10.1.0.1]}"
	endpoint := fmt.Sprintf(slice, "web", "http", one)
	annotated := func(annotation string) string {
		return fmt.Sprintf(service, ", annotations: {"+annotation+"}", "") + endpoint
	}
	good := fmt.Sprintf(service, "", "") + endpoint
	made := map[string]bool{}
	var states []madeState
	for _, c := range []struct {
		reason, severity, text string
	}{
		{"NoEndpoints", "error", fmt.Sprintf(service, "", "")},
		{"NoEndpoints", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "wbe", "http", one)},
		{"OrphanSlice", "warning", good + strings.Replace(fmt.Sprintf(slice, "wbe", "http", one), "web-1", "web-2", 1)},
		{"NoEndpoints", "warning", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "http", "")},
		{"NoReadyEndpoint", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "http", "{addresses: [10.1.0.1], conditions: {ready: false}}")},
		{"ShareRefused", "error", good + strings.Replace(fmt.Sprintf(slice, "web", "http", ""), "name: web-1,", "name: web-2, annotations: {svcctl.io/share: '1'},", 1)},
		{"PortMismatch", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "www", one)},
		{"NoLocalEndpoint", "error", fmt.Sprintf(service, "", ", type: NodePort, externalTrafficPolicy: Local") + fmt.Sprintf(slice, "web", "http", "{addresses: [10.1.0.1], nodeName: other}")},
		{"Pending", "error", fmt.Sprintf(service, "", ", type: LoadBalancer") + endpoint},
		{"NoRelay", "error", annotated("svcctl.io/tls-secret: nosuch")},
		{"HostAddress", "error", fmt.Sprintf(service, "", ", externalIPs: [192.0.2.1]") + endpoint},
		{"OtherFamily", "error", fmt.Sprintf(service, "", "") + strings.NewReplacer("IPv4", "IPv6", "web-1", "web-6").Replace(fmt.Sprintf(slice, "web", "http", "{addresses: ['fd00::1']}"))},
		{"PortConflict", "error", fmt.Sprintf(service, "", ", externalIPs: [198.51.100.9]") + endpoint},
		{"TLSNotTerminated", "error", annotated("service.beta.kubernetes.io/aws-load-balancer-ssl-cert: 'arn:x'")},
		{"OutOfNobody", "warning", annotated("svcctl.io/out: 10.9.9.9")},
		{"EgressNotAllowed", "warning", annotated("svcctl.io/egress: vip")},
		{"NoEffect", "warning", annotated("service.kubernetes.io/topology-mode: Auto")},
		{"FieldValueInvalid", "error", annotated("svcctl.io/eject: maybe")},
		{"OrphanRoute", "warning", good + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: db}\nspec: {parentRefs: [{name: egde}], rules: [{backendRefs: [{name: web, port: 80}]}]}\n"},
		{"UnknownField", "error", strings.Replace(good, "name: http}]}", "name: http, prt: 1}]}", 1)},
		{"Syntax", "error", good}, // and a file that is none
	} {
		made[c.reason] = true
		t.Run(c.reason+" "+c.severity, func(t *testing.T) {
			d := newDoors(t, program)
			d.write("rival.yaml", strings.NewReplacer("name: web", "name: rival", "10.96.0.10", "10.96.0.11", "service-name: web", "service-name: rival", "}]}", "}], externalIPs: [198.51.100.9]}").Replace(good))
			d.write("web.yaml", good)
			d.settledStep()
			d.agree(t, "", "")
			d.write("web.yaml", c.text)
			if c.reason == "Syntax" {
				d.write("broken.yaml", "}\n")
			}
			d.settledStep()
			states = append(states, d.agree(t, c.reason, c.severity))
			d.write("web.yaml", good)
			d.write("broken.yaml", "")
			d.settledStep()
			d.agree(t, "", "")
		})
	}
	reported := strings.Fields(elsewhere)
	d := newDoors(t, program)
	d.write("web.yaml", good)
	d.settledStep()
	for _, row := range verdict.Table() {
		if made[row.Reason] == slices.Contains(reported, row.Reason) {
			t.Errorf("%s: make it in this test, or list it among those that are made elsewhere", row.Reason)
			continue
		}
		for _, severity := range []string{wire.SeverityError, wire.SeverityWarning} {
			if made[row.Reason] || row.Severity != "" && row.Severity != severity {
				continue
			}
			t.Run(row.Reason+" "+severity, func(t *testing.T) {
				d.t = t
				d.reported = []resolve.Problem{{Object: object.ServiceRef("default/web"), Reason: row.Reason, Message: "as reported", Warning: severity == wire.SeverityWarning}}
				d.step()
				states = append(states, d.agree(t, row.Reason, severity))
				d.reported = nil
				d.step()
				d.quiet(t)
			})
		}
	}
	alertsAgree(t, states)
}

// settledStep steps until what is new has had its time.
func (d *doors) settledStep() {
	d.step()
	d.clock = d.clock.Add(newFor)
	d.step()
}

// madeState is what a scrape would have found.
type madeState struct {
	reason, severity string
	fails            bool
}

// agree compares what the doors show of Service web; "" reasons: it is served.
func (d *doors) agree(t *testing.T, reason, severity string) madeState {
	t.Helper()
	d.t = t
	effect := verdict.Nothing
	if i := slices.IndexFunc(verdict.Table(), func(r verdict.Row) bool { return r.Reason == reason }); i >= 0 {
		effect = verdict.Table()[i].Effect
	}
	s := d.board.Status()
	about := false // the Service; a file that cannot be read is about none
	for _, p := range s.Problems {
		if p.Reason == reason && (p.Severity != severity || p.Object == "" && effect != verdict.Stays) {
			t.Errorf("the status has %+v, want the severity %q", p, severity)
		}
		about = about || p.Reason == reason && p.Object == "Service default/web"
	}
	isError, word := severity == wire.SeverityError, wire.ServiceAnswers
	switch {
	case !about:
	case effect == verdict.FailsAlways && !isError:
		word = wire.ServiceIdle
	case isError && (effect == verdict.Fails || effect == verdict.FailsAlways):
		word = wire.ServiceFails
	case isError && effect == verdict.Stays:
		word = wire.ServiceStale
	default:
		word = wire.ServiceWarning
	}
	ready := word != wire.ServiceFails && word != wire.ServiceIdle
	expect := func(door string, agrees bool, shown any) {
		t.Helper()
		if !agrees {
			t.Errorf("%s: the Service is %q, by %s as %s: %v", door, word, reason, severity, shown)
		}
	}
	exit := map[bool]int{true: 0, false: 1}

	out, code := d.run("", "status")
	first, _, _ := strings.Cut(out, "\n")
	signed := map[string]string{"": "✓ ", "warning": "▲ ", "error": "✗ "}[severity] + s.Verdict.Text
	expect("status", code == exit[!isError] && first == signed, out)
	expect("status, first line", (word == wire.ServiceFails) == regexp.MustCompile("do(es)? not answer").MatchString(strings.Split(s.Verdict.Text, ";")[0]) || word == wire.ServiceIdle && s.Verdict.Services == 1, first)
	out, code = d.run("", "explain", "svc/web")
	lines := append(strings.Split(out, "\n"), "", "")
	answer := map[bool]string{true: "  ✓ it answers: ", false: "  ✗ it does not answer: "}[ready]
	if word == wire.ServiceStale {
		answer = "  ✗ it answers, in an earlier version: "
	}
	expect("explain", code == exit[ready && word != wire.ServiceStale] && strings.HasPrefix(lines[1], answer), out)
	if reason == "TLSNotTerminated" {
		expect("explain", !strings.Contains(out, "none of them is used") && !strings.Contains(out, "load balanced"), out)
	}
	out, code = d.run("", "wait", "svc/web", "--for=ready", "--timeout", map[bool]string{true: "2m", false: "300ms"}[ready])
	expect("wait", code == exit[ready], out)
	// It claims no field, so that those of the file stay the file's.
	out, code = d.run("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", "apply", "-f", "-", "--wait=2m")
	expect("apply --wait", code == exit[!about || !isError], out)
	page := d.page()
	before, row, _ := strings.Cut(page, `href="/dashboard/services/default/web"`)
	row = before[max(0, strings.LastIndex(before, "<tr>")):] + row[:max(0, strings.Index(row, "</tr>"))]
	heading, _, _ := strings.Cut(s.Verdict.Text, "; ")
	expect("dashboard", strings.Contains(page, "<h1>"+heading+"</h1>") && (strings.Contains(row, inRow[word]) || word == wire.ServiceAnswers && strings.Contains(row, "– Not checked")), row)
	text := scraped(t, d.rig)
	expect("metrics", strings.Contains(text, fmt.Sprintf(`svcctl_service_states{state=%q} %d`, word, map[bool]int{true: s.Verdict.Answers, false: 1}[word == wire.ServiceAnswers])), text)
	expect("metrics", strings.Contains(text, fmt.Sprintf(`svcctl_problems{reason=%q,severity=%q} 1`, reason, severity)) == (reason != ""), text)
	o, _ := d.store.Get(object.ServiceRef("default/web"))
	conditions, settled := d.board.Conditions().Of(o.(*object.Service))
	expect("conditions", settled && (conditions[0].Status == object.ConditionTrue) == ready && (conditions[1].Status == object.ConditionTrue) == (word != wire.ServiceStale) &&
		(ready || conditions[0].Reason == reason && conditions[0].Message != ""), conditions)
	expect("groups", slices.ContainsFunc(s.Verdict.Groups, func(g wire.ProblemGroup) bool { return g.Reason == reason && g.Severity == severity && g.Text != "" }) == (reason != ""), s.Verdict.Groups)
	return madeState{reason, severity, word == wire.ServiceFails}
}

// quiet asserts that nothing is left of a problem.
func (d *doors) quiet(t *testing.T) {
	t.Helper()
	s := d.board.Status()
	if len(s.Problems)+len(s.Verdict.Groups) > 0 || s.Verdict.Answers != s.Verdict.Services || strings.Contains(scraped(t, d.rig), "svcctl_problems{") || !strings.Contains(d.page(), "<h1>"+s.Verdict.Text+"</h1>") {
		t.Errorf("left: %+v", s.Verdict)
	}
}

// alertsAgree has promtool test the alert rules with the metrics of states: an alert for errors fires exactly where the
// status has one, and a critical one where the Service does not answer.
func alertsAgree(t *testing.T, states []madeState) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	rules, err := filepath.Abs("../../examples/monitoring/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: 1m\ntests:\n", rules)
	for _, s := range states {
		isError := map[bool]int{true: 1}[s.severity == wire.SeverityError]
		fails := map[bool]int{true: 1}[s.fails]
		fmt.Fprintf(&b, "  - name: %s %s\n    interval: 1m\n    input_series:\n", s.reason, s.severity)
		for series, n := range map[string]int{`svcctl_objects_problems{severity="error"}`: isError, `svcctl_service_states{state="fails"}`: fails, fmt.Sprintf(`svcctl_problems{severity=%q, reason=%q}`, s.severity, s.reason): 1} {
			fmt.Fprintf(&b, "      - {series: '%s', values: '%dx20'}\n", series, n)
		}
		b.WriteString("    alert_rule_test:\n")
		for _, alert := range []struct {
			name, labels, summary, action string
			fires                         int
		}{
			{"SvcctlServicesFail", "state: fails, severity: critical", "1 Services of  do not answer", "`svcctl status` names them and the next step.", fails},
			{"SvcctlObjectsRefused", "severity: warning", "1 problems of objects on ", "`svcctl status` names them.", isError},
		} {
			fmt.Fprintf(&b, "      - eval_time: 10m\n        alertname: %s\n", alert.name)
			if alert.fires > 0 {
				fmt.Fprintf(&b, "        exp_alerts: [{exp_labels: {%s}, exp_annotations: {summary: %q, action: %q}}]\n", alert.labels, alert.summary, alert.action)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "states.yml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// A slice whose label is mistyped is named with the nearest Service; a dead server behind several Services is one
// problem.
func TestOrphanSliceNamesTheNearestService(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", strings.Replace(web("shop", "10.96.0.10", "10.1.0.1"), "service-name: shop", "service-name: shpo", 1))
	r.step()
	if len(r.board.Status().Problems) > 0 || len(r.board.Status().Verdict.Settling) != 1 {
		t.Errorf("new objects have problems at once: %+v", r.board.Status().Problems)
	}
	r.clock = r.clock.Add(newFor)
	r.step()
	found := ""
	for _, p := range r.board.Status().Problems {
		found += p.Message + "\n"
	}
	if !strings.Contains(found, "names Service shpo, which does not exist. Did you mean shop?") {
		t.Error(found)
	}
}

func scraped(t *testing.T, r *rig) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.metrics.Handler(r.board, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// An endpoint that fails in two ways by turns is one problem in the log, from its begin to its end.
func TestRewordedProblemGoesOn(t *testing.T) {
	var logged strings.Builder
	r := NewReporter(slog.New(slog.NewTextHandler(&logged, nil)), func(object.Ref) (string, int) { return "", 0 }, nil, nil)
	now := time.Unix(1_700_000_000, 0)
	turn := func(messages ...string) {
		var problems []resolve.Problem
		for _, m := range messages {
			problems = append(problems, resolve.Problem{Object: object.Ref{Kind: object.KindService, Namespace: "shop", Name: "web"}, Reason: "EndpointSilent", Message: m, Cause: "10.1.2.12:8080"})
		}
		r.from("test", problems)
		r.flush(now, func(*manifest.Problem) time.Time { return time.Time{} })
		now = now.Add(time.Second)
	}
	turn("no answer")
	turn("no route to host")
	turn("no answer")
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, logged.String())
	}
	turn()
	if n := strings.Count(logged.String(), "problem is over"); n != 1 {
		t.Errorf("it is over %d times:\n%s", n, logged.String())
	}
}
