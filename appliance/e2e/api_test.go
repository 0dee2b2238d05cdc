package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// apiClient is a client of the API over TLS, made from a kubeconfig as kubectl makes one.
type apiClient struct {
	t     *testing.T
	box   *box
	http  *http.Client
	url   string
	token string
}

var (
	caInKubeconfig      = regexp.MustCompile(`certificate-authority-data: (\S+)`)
	serverInKubeconfig  = regexp.MustCompile(`server: (\S+)`)
	commandInKubeconfig = regexp.MustCompile(`command: (\S+)`)
)

// api is a client on the box.
func (b *box) api(t *testing.T) *apiClient {
	t.Helper()
	kubeconfig, errOut, code := b.svcctl.Svcctl("admin", "kubeconfig")
	if code != 0 {
		t.Fatalf("svcctl admin kubeconfig: exit %d: %s", code, errOut)
	}
	find := func(what *regexp.Regexp) string {
		found := what.FindStringSubmatch(kubeconfig)
		if found == nil {
			t.Fatalf("no %s in the kubeconfig:\n%s", what, kubeconfig)
		}
		return found[1]
	}
	ca, err := base64.StdEncoding.DecodeString(find(caInKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("the kubeconfig has no CA")
	}
	out, errOut, err := b.GW1.Run("env", `KUBERNETES_EXEC_INFO={"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"}`,
		find(commandInKubeconfig), "admin", "token", "--socket", b.svcctl.Socket)
	var credential struct{ Status struct{ Token string } }
	if err == nil {
		err = json.Unmarshal([]byte(out), &credential)
	}
	if err != nil {
		t.Fatalf("svcctl admin token: %v: %s%s", err, out, errOut)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = b.GW1.Do(func() error { conn, err = net.DialTimeout(network, address, syncTimeout); return err })
			return conn, err
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &apiClient{t, b, &http.Client{Transport: transport}, find(serverInKubeconfig), credential.Status.Token}
}

// start makes a request and gives the answer, whose body the caller closes.
func (c *apiClient) start(method, path, body string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// do makes a request, whose answer must have the code, and decodes it.
func (c *apiClient) do(method, path, body string, code int) (o apiObject) {
	c.t.Helper()
	resp := c.start(method, path, body)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == code {
		err = json.Unmarshal(answer, &o)
	}
	if err != nil || resp.StatusCode != code {
		c.t.Fatalf("%s %s: %d, %v, want %d: %s", method, path, resp.StatusCode, err, code, answer)
	}
	return o
}

// apiObject has the fields of objects and lists that the tests read.
type apiObject struct {
	Kind     string
	Metadata struct{ Name, Namespace, UID, ResourceVersion string }
	Spec     struct{ ClusterIP string }
	Items    []struct {
		Metadata       struct{ Name string }
		Message        string
		InvolvedObject struct{ Name string }
		Status         struct {
			Addresses []struct{ Type, Address string }
		}
	}
	Message string
}

const (
	servicesPath = "/api/v1/namespaces/default/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
)

// conditionsAgain begins the event of a watch that delivers a Service with other conditions.
const conditionsAgain = `{"type":"MODIFIED","object":{"kind":"Service",`

// TestAPI has a client over TLS make a Service, which is served then like any other, and
// everything that a client finds of the box.
func TestAPI(t *testing.T) {
	b := newBox(t, flags{"listen": {"127.0.0.1:6443"}})
	b.write("web.yaml", func(f family) []string {
		return []string{f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1)}
	})
	// It has an endpoint: without one, another problem of it is reported 10 s after it came, which may be after the restart below.
	b.svcctl.Manifests.Write("bad.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: lb}\nspec: {type: LoadBalancer, loadBalancerIP: 192.0.2.77, ports: [{port: 80}]}\n---\n"+
		strings.ReplaceAll(ipv4.slice("lb", "\"\": 80", b.L1), ipv4.name("lb"), "lb"))
	b.svcctl.Start()
	c := b.api(t)

	made := c.do("POST", servicesPath, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"made"},"spec":{"ports":[{"name":"p80","port":80}]}}`, 201)
	c.do("POST", slicesPath, fmt.Sprintf(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"made-1",
		"labels":{"kubernetes.io/service-name":"made"}},"addressType":"IPv4","ports":[{"name":"p80","port":80}],
		"endpoints":[{"addresses":[%q]}]}`, ipv4.of(b.R1)), 201)
	b.synced()
	b.reaches(t, b.IN, "tcp", ipv4.at(made.Spec.ClusterIP, 80), plain, ipv4.on(80, b.R1)...)

	// What a file declares is the file's.
	refused := c.do("PATCH", servicesPath+"/web-4", `[]`, 415)
	if refused.Kind != "Status" {
		t.Errorf("a refusal is %+v", refused)
	}
	if gone := c.do("DELETE", servicesPath+"/web-4", ``, 409); !strings.Contains(gone.Message, "web.yaml") {
		t.Errorf("deleting what a file declares: %s", gone.Message)
	}
	if nodes := c.do("GET", "/api/v1/nodes", "", 200); len(nodes.Items) != 1 || nodes.Items[0].Metadata.Name != "gw1" ||
		nodes.Items[0].Status.Addresses[0].Address != ipv4.boxAddr() {
		t.Errorf("nodes %+v", nodes)
	}
	eventually(t, syncTimeout, func() error {
		events := c.do("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=lb", "", 200)
		if len(events.Items) != 1 || !strings.Contains(events.Items[0].Message, "bad.yaml:4") {
			return fmt.Errorf("events of lb: %+v", events.Items)
		}
		return nil
	})
	out, _, code := b.svcctl.Svcctl("journal", "-o", "json")
	if code != 0 || !strings.Contains(out, `"verb":"create","kind":"Service","namespace":"default","name":"made","user":"root"`) {
		t.Errorf("svcctl journal: exit %d:\n%s", code, out)
	}

	// A watch goes on over a restart that it does not hold up, and the restart writes nothing.
	// The Event of the only problem is written by now, and so is what the program makes at its start.
	eventually(t, syncTimeout, func() error {
		_, errOut, code := b.svcctl.Svcctl("get", "gatewayclass", "svcctl")
		if code != 0 {
			return errors.New(errOut)
		}
		return nil
	})
	list := c.do("GET", servicesPath, "", 200)
	watch := c.start("GET", servicesPath+"?watch=true&resourceVersion="+list.Metadata.ResourceVersion, "")
	defer watch.Body.Close()
	accepted := b.status().Revision.Accepted
	b.svcctl.Stop()
	// The conditions of Services come again with the version that they have.
	if rest, err := io.ReadAll(watch.Body); err != nil || strings.Count(string(rest), "\n") > strings.Count("\n"+string(rest), "\n"+conditionsAgain) {
		t.Errorf("the watch ended with %q, %v", rest, err)
	}
	b.svcctl.Start()
	b.synced()
	if again := b.status().Revision.Accepted; again != accepted {
		out, _, _ := b.svcctl.Svcctl("journal", "--limit", "5")
		t.Errorf("a restart over unchanged input went from revision %d to %d:\n%s", accepted, again, out)
	}
	resumed := c.start("GET", servicesPath+"?watch=true&resourceVersion="+list.Metadata.ResourceVersion, "")
	defer resumed.Body.Close()
	c.do("DELETE", servicesPath+"/made", "", 200)
	lines := bufio.NewReader(resumed.Body)
	line, err := lines.ReadString('\n')
	for err == nil && strings.HasPrefix(line, conditionsAgain) {
		line, err = lines.ReadString('\n')
	}
	if err != nil || !strings.HasPrefix(line, `{"type":"DELETED"`) || !strings.Contains(line, made.Metadata.UID) {
		t.Errorf("the watch told %q, %v", line, err)
	}

	// Without a token there is nothing to see, and tokens end when they are revoked.
	if out, errOut, code := b.svcctl.Svcctl("admin", "token", "--revoke-all"); code != 0 {
		t.Fatalf("revoke: exit %d: %s%s", code, out, errOut)
	}
	c.do("GET", servicesPath, "", 401)
	b.api(t).do("GET", servicesPath, "", 200)
}

// TestSlowClients: clients that take nothing, or say nothing, hold up neither the loop nor
// other clients.
func TestSlowClients(t *testing.T) {
	b := newBox(t, flags{"listen": {"127.0.0.1:6443"}})
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	for range 300 { // more than there is room for
		var conn net.Conn
		err := b.GW1.Do(func() (err error) { conn, err = net.DialTimeout("tcp", "127.0.0.1:6443", syncTimeout); return err })
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	c := b.api(t)
	for range 10 {
		watch := c.start("GET", "/api/v1/configmaps?watch=true", "")
		defer watch.Body.Close()
	}
	// More than what a client's side takes by itself, 4 MiB a watch.
	const path = "/api/v1/namespaces/default/configmaps"
	for i := range 12 {
		large := fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"large-%d"},"data":{"text":%q}}`, i, strings.Repeat("x", 500<<10))
		c.do("POST", path, large, 201)
	}
	began := time.Now()
	b.rewrite("web.yaml", b.webDocuments(b.R1))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.R1)...)
	}
	if list := c.do("GET", path+"?limit=1", "", 200); len(list.Items) != 1 {
		t.Errorf("listed %d", len(list.Items))
	}
	if took := time.Since(began); took > 10*time.Second { // real time: clients that take nothing end after 15 s, which nothing waits for
		t.Errorf("beside slow clients a change of a file took %s", took)
	}
}

// slowBody is a body of nearly 3 MiB whose last byte never comes.
type slowBody struct {
	left int
	end  <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.end
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), b.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	b.left -= n
	return n, nil
}

// A client with a token that may only read sends many long bodies, none of which ends. Each is refused, and the process stays small.
func Test1041_bodies_that_never_end(t *testing.T) {
	const clients, most = 250, 300 << 10 // KiB
	const at = "127.0.0.1:6443"
	b := newBox(t, flags{"listen": {at}})
	b.svcctl.Start()
	token, errOut, code := b.svcctl.Svcctl("admin", "token", "--role", "reader")
	if code == 2 { // of an earlier program
		token, errOut, code = b.svcctl.Svcctl("token", "--role", "reader")
	}
	if code != 0 {
		t.Fatal(errOut)
	}
	// send sends a request over a connection of its own. An http.Client would not return the error of a connection that was reset until
	// the body ends, which it does not.
	send := func(req *http.Request) (string, error) {
		var conn net.Conn
		if err := b.GW1.Do(func() (err error) { conn, err = net.DialTimeout("tcp", at, syncTimeout); return err }); err != nil {
			return "", err
		}
		secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		defer conn.Close()
		go func() { _ = req.Write(secured) }() // the answer, or the end of the connection, is read below
		resp, err := http.ReadResponse(bufio.NewReader(secured), req)
		if err != nil {
			return "", err
		}
		resp.Body.Close()
		return resp.Status, nil
	}
	end, answers := make(chan struct{}), make(chan string, clients)
	t.Cleanup(func() { close(end) })
	for range clients {
		req, err := http.NewRequest("POST", "https://"+at+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &slowBody{3<<20 - 2, end})
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = 3<<20 - 1
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
		req.Header.Set("Content-Type", "application/json")
		go func() {
			status, err := send(req)
			if err != nil {
				status = err.Error()
			}
			answers <- status
		}()
	}
	got := map[string]int{}
	limit := time.After(3 * syncTimeout)
	for n := 0; n < clients; n++ {
		select {
		case answer := <-answers:
			got[answer]++
		case <-limit:
			t.Errorf("%d bodies are still read", clients-n)
			n = clients
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.svcctl.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var resident int
	if _, err := fmt.Sscan(text, &resident); err != nil || resident > most {
		t.Errorf("the process had %d KiB, want %d at most (%v); answers: %v", resident, most, err, got)
	}
	t.Logf("%d KiB at most; answers: %v", resident, got)
}
