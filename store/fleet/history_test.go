package fleet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

var zeroPort netip.AddrPort

// access is an operation of a history: a put of a value, or a get.
type access struct {
	key, value string
	put        bool
}

// history are operations on registers, each the annotation of a Service.
type history struct {
	began time.Time

	mu      sync.Mutex
	ops     []porcupine.Operation
	puts    int
	unknown int
}

const registerAnnotation = "example.org/value"

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

// write writes a register without asking for a version. A write that was refused took no place; one
// that nobody answered takes one at any time after its call.
func (h *history) write(client int, b *box, key, value string) {
	svc := service(key)
	svc.Metadata.Annotations = map[string]string{registerAnnotation: value}
	h.wrote(client, key, value, func() error {
		results, err := b.Write(store.Write{Ref: serviceRef(key), Object: svc})
		if err == nil {
			err = results[0].Err
		}
		return err
	})
}

// wrote notes what became of a write.
func (h *history) wrote(client int, key, value string, write func() error) {
	call := h.now()
	err := write()
	end := h.now()
	var away *engine.AwayError
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.As(err, &away):
		return
	case err != nil: // nobody knows
		end = math.MaxInt64
		h.unknown++
	default:
		h.puts++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: access{key, value, true}, Call: call, Output: "", Return: end})
}

// read reads a register, as of now.
func (h *history) read(ctx context.Context, client int, b *box, key string) {
	call := h.now()
	if err := b.Fresh(ctx); err != nil {
		return
	}
	h.got(client, key, b.value(key), call)
}

func (h *history) got(client int, key, value string, call int64) {
	end := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: access{key: key}, Call: call, Output: value, Return: end})
}

func (b *box) value(key string) string {
	o, _ := b.Get(serviceRef(key))
	if o == nil {
		return ""
	}
	return o.(*object.Service).Metadata.Annotations[registerAnnotation]
}

func (h *history) acknowledged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.puts
}

// registers is a model of independent registers, which are empty at first.
var registers = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(access).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if in := input.(access); in.put {
			return true, in.value
		}
		return output.(string) == state.(string), state
	},
}

// check asserts that the history is one of registers, and that a lost write and a stale read would not be.
func (h *history) check(t *testing.T) {
	t.Helper()
	if got := porcupine.CheckOperationsTimeout(registers, h.ops, time.Minute); got != porcupine.Ok {
		t.Errorf("the history is %s", got)
	}
	// An acknowledged write that was read, and is taken out: the read saw what nobody wrote.
	read := map[string]bool{}
	for _, op := range h.ops {
		if !op.Input.(access).put {
			read[op.Output.(string)] = true
		}
	}
	for i, op := range h.ops {
		if in := op.Input.(access); in.put && read[in.value] && op.Return != math.MaxInt64 {
			lost := append(append([]porcupine.Operation{}, h.ops[:i]...), h.ops[i+1:]...)
			if got := porcupine.CheckOperationsTimeout(registers, lost, time.Minute); got != porcupine.Illegal {
				t.Errorf("a history with a refusal that was none is %s", got)
			}
			return
		}
	}
	t.Error("no write was read: the history shows nothing")
}

// A read that does not ask for the newest version is stale on a box that is behind, and the judge sees it.
func Test469_reads_without_asking_are_stale(t *testing.T) {
	_, a, b := twoBoxes(t)
	if err := a.create("k"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
	h := &history{began: time.Now()}
	for n := range 200 {
		h.write(0, a, "k", time.Duration(n).String())
		call := h.now()
		h.got(1, "k", b.value("k"), call)
	}
	if got := porcupine.CheckOperationsTimeout(registers, h.ops, time.Minute); got != porcupine.Illegal {
		t.Errorf("reads from memory were never behind: the history is %s", got)
	}
	fresh := &history{began: time.Now()}
	fresh.write(0, a, "k", "first")
	for n := range 200 {
		fresh.write(0, a, "k", time.Duration(n).String())
		fresh.read(t.Context(), 1, b, "k")
	}
	fresh.check(t)
}

// makeCertificates writes a CA, and certificates of a server and a client with their keys.
func makeCertificates(t *testing.T, dir string) (ca, server, client string) {
	t.Helper()
	caKey, caCert := certificate(t, testUser, nil, nil)
	write := func(name string, key *ecdsa.PrivateKey, der []byte) string {
		text, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, block := range map[string]*pem.Block{".key": {Type: "EC PRIVATE KEY", Bytes: text}, ".crt": {Type: "CERTIFICATE", Bytes: der}} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Join(dir, name)
	}
	for name, user := range map[string]string{"server": testUser, "client": testUser, "stranger": "stranger"} {
		key, cert := certificate(t, user, caKey, caCert)
		write(name, key, cert.Raw)
	}
	return write("ca", caKey, caCert.Raw) + ".crt", filepath.Join(dir, "server"), filepath.Join(dir, "client")
}

// testUser is the CN of the certificates that boxes have.
const testUser = "svcctl test"

// certificate makes a key and a certificate of a user for it; without an issuer it is a CA.
func certificate(t *testing.T, user string, issuer *ecdsa.PrivateKey, by *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(math.MaxInt64))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if issuer == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		issuer, by = key, template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, issuer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}

// clientTLS trusts a CA, and shows a certificate if one is named.
func clientTLS(t *testing.T, ca, client string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AppendCertsFromPEM(text)
	if client != "" {
		pair, err := tls.LoadX509KeyPair(client+".crt", client+".key")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}
