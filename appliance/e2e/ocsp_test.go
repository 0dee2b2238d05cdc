package e2e

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/pki"
)

// responder is openssl as OCSP responder of a CA, at a port of the host that it runs on.
type responder struct {
	t    *testing.T
	ca   *issuer
	host *netlab.Host
	dir  string
}

const responderPort = "2560"

func newResponder(t *testing.T, ca *issuer, host *netlab.Host) *responder {
	t.Helper()
	r := &responder{t, ca, host, t.TempDir()}
	_, key := pki.PEM(t, ca.cert)
	r.write("ca.key", string(key))
	r.write("index.txt", "")
	return r
}

func (r *responder) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// issue issues a certificate, with that of the CA behind it, that clients refuse without a response, and has the
// responder say that it is good.
func (r *responder) issue(name string) issued {
	r.t.Helper()
	end := time.Now().Add(500 * time.Hour)
	leaf := pki.IssueWith(r.t, r.ca.cert, func(c *x509.Certificate) {
		c.OCSPServer = []string{"http://127.0.0.1:" + responderPort}
		pki.MustStaple(c)
	}, time.Now().Add(-48*time.Hour), end, name)
	cert, key := pki.PEM(r.t, leaf)
	r.write(name+".pem", string(cert))
	serial := fmt.Sprintf("%X", leaf.Leaf.SerialNumber)
	if len(serial)%2 == 1 {
		serial = "0" + serial
	}
	index, err := os.ReadFile(filepath.Join(r.dir, "index.txt"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("index.txt", string(index)+fmt.Sprintf("V\t%s\t\t%s\tunknown\t/CN=%[2]s\n", end.UTC().Format("060102150405Z"), serial)) // one name each
	return issued{string(cert) + r.ca.pem(), string(key)}
}

func (r *responder) openssl(args ...string) {
	r.t.Helper()
	if out, errOut, err := r.host.Run("openssl", append([]string{"ocsp"}, args...)...); err != nil {
		r.t.Fatalf("openssl ocsp %v: %v\n%s%s", args, err, out, errOut)
	}
}

func (r *responder) signs() []string {
	in := func(name string) string { return filepath.Join(r.dir, name) }
	return []string{"-index", in("index.txt"), "-CA", r.ca.file, "-rsigner", r.ca.file, "-rkey", in("ca.key"), "-ndays", "7"}
}

// response is one about a certificate, in DER.
func (r *responder) response(name string) []byte {
	r.t.Helper()
	request, answer := filepath.Join(r.dir, "request"), filepath.Join(r.dir, "answer")
	r.openssl("-issuer", r.ca.file, "-cert", filepath.Join(r.dir, name+".pem"), "-no_nonce", "-reqout", request)
	r.openssl(append(r.signs(), "-reqin", request, "-respout", answer)...)
	der, err := os.ReadFile(answer)
	if err != nil {
		r.t.Fatal(err)
	}
	return der
}

// start answers requests about what was issued so far, until the end of the test.
func (r *responder) start() {
	r.t.Helper()
	stop := r.host.Background("openssl", append(append([]string{"ocsp"}, r.signs()...), "-port", responderPort)...)
	r.t.Cleanup(func() {
		if out := stop(); r.t.Failed() {
			r.t.Logf("openssl ocsp: %s", out)
		}
	})
}

// stapledDocument is a Secret with a certificate and an OCSP response.
func stapledDocument(name string, pair issued, response []byte) string {
	return secretDocument(name, pair) + "data:\n  tls.ocsp-staple: " + base64.StdEncoding.EncodeToString(response) + "\n"
}

func Test416_OCSP_responses_are_stapled(t *testing.T) {
	ca := newIssuer(t, "ca")
	b := newBox(t, nil)
	b.echoes(t, ca.issue("x"), b.L1, b.R1)
	r := newResponder(t, ca, b.GW1)
	const fetch = "svcctl.io/tls-ocsp: fetch"
	annotations := []string{"svcctl.io/tls-secret: www"}
	first := r.issue("www.example.com")
	b.write("web.yaml", tlsDocuments(b, annotations, "9000", secretDocument("www", first)))
	b.svcctl.Start()
	stapled := func(f family, serial string) error {
		for _, version := range []string{"-tls1_2", "-tls1_3"} {
			out, err := openssl(b.EXT, f.at(f.lb(4), 443), "-servername", "www.example.com", "-CAfile", ca.file, "-verify_return_error", "-status", version)
			if err != nil {
				return fmt.Errorf("s_client: %w\n%s", err, out)
			}
			for _, want := range []string{"OCSP Response Status: successful", "Cert Status: good", serial} {
				if !strings.Contains(out, want) {
					return fmt.Errorf("%s: s_client does not say %q:\n%s", version, want, out)
				}
			}
		}
		return nil
	}
	serial := func(pair issued) string {
		block, _ := pem.Decode([]byte(pair.cert))
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%X", c.SerialNumber)
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "warning", "NoOCSPResponse", "must-staple")
		if out, err := openssl(b.EXT, f.at(f.lb(4), 443), "-status"); !strings.Contains(out, "OCSP response: no response sent") {
			t.Errorf("without a response: %v, %s", err, out)
		}
	})
	// From the Secret.
	b.rewrite("web.yaml", tlsDocuments(b, annotations, "9000", stapledDocument("www", first, r.response("www.example.com"))))
	b.each(t, func(t *testing.T, b *box, f family) {
		if err := stapled(f, serial(first)); err != nil {
			t.Error(err)
		}
		b.noProblem(t, f.object("Service", "web"))
		b.verbs(t).says(0, []string{"with an OCSP response until"}, "explain", "svc/"+f.name("web"))
	})
	// From the responder, which does not answer at first.
	second := r.issue("www.example.com")
	b.rewrite("web.yaml", tlsDocuments(b, append(annotations, fetch), "9000", secretDocument("www", second)))
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, time.Minute, func() error {
			if text := b.verbs(t).does(0, "explain", "svc/"+f.name("web")); !strings.Contains(text, "connection refused") || !strings.Contains(text, "must-staple") {
				return errors.New("the status does not say that the responder refuses: " + text)
			}
			return nil
		})
	})
	third := r.issue("www.example.com") // is asked about at once
	r.start()
	eventually(t, time.Minute, func() error {
		_, _, err := b.GW1.Run("openssl", "ocsp", "-issuer", ca.file, "-cert", filepath.Join(r.dir, "www.example.com.pem"), "-url", "http://127.0.0.1:"+responderPort, "-CAfile", ca.file)
		return err
	})
	b.rewrite("web.yaml", tlsDocuments(b, append(annotations, fetch), "9000", secretDocument("www", third)))
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, 3*time.Minute, func() error { return stapled(f, serial(third)) }) // after a failure it is asked again in a minute
		eventually(t, time.Minute, func() error {
			if text := b.verbs(t).does(0, "explain", "svc/"+f.name("web")); strings.Contains(text, "must-staple") {
				return errors.New("the problem stays: " + text)
			}
			return nil
		})
		if out := curl(t, b.EXT, ca, "www.example.com", f.at(f.lb(4), 443), "--cert-status"); !strings.Contains(out, "host=www.example.com") {
			t.Errorf("curl, which asks for a response: %s", out)
		}
	})
}
