package tlsterm

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
)

// made is a self-signed certificate with its key, in PEM.
func made(t *testing.T, name string, begin, end time.Time) map[string][]byte {
	t.Helper()
	cert, key := pki.PEM(t, pki.Issue(t, nil, begin, end, name))
	return map[string][]byte{certKey: cert, keyKey: key}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func TestParsePair(t *testing.T) {
	good, other := made(t, "a", noon, noon.Add(day)), made(t, "b", noon, noon.Add(day))
	for name, tt := range map[string]struct {
		crt, key []byte
		want     string // "" for a pair
	}{
		"good":           {good[certKey], good[keyKey], ""},
		"with a chain":   {append(bytes.Clone(good[certKey]), other[certKey]...), good[keyKey], ""},
		"no certificate": {nil, good[keyKey], "data[tls.crt] is empty"},
		"no key":         {good[certKey], []byte("\n"), "data[tls.key] is empty"},
		"not PEM":        {[]byte("hello"), good[keyKey], "data[tls.crt] is not PEM"},
		"half":           {good[certKey][:100], good[keyKey], "data[tls.crt] is not PEM, or ends in the middle"},
		"half a chain":   {append(bytes.Clone(good[certKey]), other[certKey][:100]...), good[keyKey], "data[tls.crt] is not PEM, or ends in the middle"},
		"half a key":     {good[certKey], good[keyKey][:60], "data[tls.key] is not PEM, or ends in the middle"},
		"swapped":        {good[keyKey], good[certKey], "data[tls.crt] has no PEM block of type CERTIFICATE"},
		"mismatch":       {good[certKey], other[keyKey], "the key in data[tls.key] does not belong to the certificate in data[tls.crt]"},
		"not DER":        {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), good[keyKey], "cannot be used"},
		"encrypted":      {good[certKey], pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")}), "data[tls.key] is encrypted"},
	} {
		p, err := ParsePair("default/a", map[string][]byte{certKey: tt.crt, keyKey: tt.key})
		switch {
		case tt.want == "" && (err != nil || p.Names()[0] != "a"):
			t.Errorf("%s: %v, %v", name, p, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	if _, err := ParseAuthority(map[string][]byte{caKey: good[certKey]}); err != nil {
		t.Error(err)
	}
	for name, text := range map[string][]byte{"empty": nil, "half": good[certKey][:80], "a key": good[keyKey]} {
		if _, err := ParseAuthority(map[string][]byte{caKey: text}); err == nil || !strings.Contains(err.Error(), "data[ca.crt]") {
			t.Errorf("CA, %s: %v", name, err)
		}
	}
}

// keeping is a Keeper of one Secret, at a time of the test's.
type keeping struct {
	*Keeper
	data    map[string][]byte
	version string
	now     time.Time
}

func keeper() *keeping {
	k := &keeping{now: noon}
	k.Keeper = NewKeeper(func(string) (map[string][]byte, string, bool) { return k.data, k.version, k.data != nil })
	k.Keeper.now = func() time.Time { return k.now }
	return k
}

// put changes the Secret.
func (k *keeping) put(data map[string][]byte) { k.data, k.version = data, k.version+"x" }

// want asserts the name of the certificate in use, "" for none, and parts of what is said.
func (k *keeping) want(t *testing.T, when, name, wrong, soon string) {
	t.Helper()
	p, gotWrong, gotSoon := k.Pair("default/web")
	got := ""
	if p != nil {
		got = p.Names()[0]
	}
	bad := func(got, want string) bool { return want == "" && got != "" || !strings.Contains(got, want) }
	if got != name || bad(gotWrong, wrong) || bad(gotSoon, soon) {
		t.Errorf("%s: certificate for %q, wrong: %q, soon: %q; want %q, %q, %q", when, got, gotWrong, gotSoon, name, wrong, soon)
	}
	if in, _ := k.InUse("default/web"); in != p {
		t.Errorf("%s: in use is %v, want %v", when, in, p)
	}
}

func TestKeeper(t *testing.T) {
	k := keeper()
	a := made(t, "a", noon.Add(-day), noon.Add(30*day))
	k.want(t, "without a Secret", "", "it is not there: make it with `kubectl create secret tls web", "")
	k.put(map[string][]byte{})
	k.want(t, "an empty Secret", "", "data[tls.crt] is empty", "")
	k.put(a)
	k.want(t, "good", "a", "", "")
	same, _, _ := k.Pair("default/web")
	if again, _, _ := k.Pair("default/web"); again != same {
		t.Error("the same Secret is read anew")
	}
	k.put(map[string][]byte{certKey: a[certKey][:99], keyKey: a[keyKey]})
	k.want(t, "half written", "a", "ends in the middle: write it whole; the certificate before (for a, until 2026-01-31 12:00 UTC) stays in use", "")
	k.data = nil
	k.want(t, "gone", "a", "it is not there", "")
	k.put(made(t, "ended", noon.Add(-3*day), noon.Add(-day)))
	k.want(t, "ended", "a", "has expired: renew it; the certificate before", "")
	k.put(made(t, "later", noon.Add(day), noon.Add(60*day)))
	k.want(t, "not yet", "a", "does not begin before 2026-01-02 12:00 UTC; the certificate before (for a, until 2026-01-31 12:00 UTC) stays in use until then", "")
	k.now = noon.Add(day)
	k.want(t, "it begins", "later", "", "")
	k.now = noon.Add(46*day - time.Second)
	k.want(t, "15 days before its end", "later", "", "")
	k.now = noon.Add(46 * day)
	k.want(t, "14 days before its end", "later", "", "expires within 14 days: renew it")
	k.now = noon.Add(60 * day)
	k.want(t, "at its end", "later", "has expired, and clients refuse it: renew it", "")
	k.data = nil
	k.want(t, "gone after its end", "later", "which has expired, stays in use", "")
	k.ForgetPair("default/web")
	k.want(t, "forgotten", "", "it is not there", "")
	k.put(made(t, "ended", noon.Add(-3*day), noon.Add(-day)))
	k.want(t, "nothing better", "ended", "has expired, and clients refuse it", "")
}

// Due names what changes by time alone.
func TestKeeperDue(t *testing.T) {
	k := keeper()
	if _, _, ok := k.Due(noon); ok {
		t.Error("something is due, and there is nothing")
	}
	k.put(made(t, "a", noon.Add(-day), noon.Add(30*day)))
	k.Pair("default/web")
	from := noon
	for _, want := range []time.Time{noon.Add(16 * day), noon.Add(30 * day)} {
		at, secrets, ok := k.Due(from)
		if !ok || !at.Equal(want) || len(secrets) != 1 || secrets[0] != "default/web" {
			t.Errorf("after %s: %s, %v, %t, want %s", from, at, secrets, ok, want)
		}
		from = at
	}
	if at, _, ok := k.Due(from); ok {
		t.Errorf("due at %s, after the end", at)
	}
}

func TestKeeperOfAuthorities(t *testing.T) {
	k := keeper()
	if a, wrong := k.Authority("default/ca"); a != nil || !strings.Contains(wrong, "kubectl create secret generic ca --from-file=ca.crt=FILE` in namespace default") {
		t.Errorf("%v, %q", a, wrong)
	}
	k.put(map[string][]byte{caKey: made(t, "ca", noon, noon.Add(day))[certKey]})
	first, wrong := k.Authority("default/ca")
	if first == nil || wrong != "" {
		t.Fatalf("%v, %q", first, wrong)
	}
	k.put(map[string][]byte{caKey: []byte("x")})
	if a, wrong := k.Authority("default/ca"); a != first || !strings.Contains(wrong, "the CA before stays in use") {
		t.Errorf("%v, %q", a, wrong)
	}
}

// pipe is two ends of a TCP connection.
func pipe(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// Tickets are good for days, by keys that change every day; none outlives a week, or the Config.
func TestTicketsRotate(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		now := time.Now()
		pair, err := ParsePair("default/a", made(t, "a", now.Add(-day), now.Add(100*day)))
		if err != nil {
			t.Fatal(err)
		}
		server := &Server{Pairs: []*Pair{pair}, Min: version, Max: version}
		clock := now
		config := func() *tls.Config {
			c := server.Config()
			c.Time = func() time.Time { return clock }
			return c
		}
		inUse := config()
		roots := pki.Pool(&pair.certificate)
		connect := func(cache tls.ClientSessionCache) (resumed bool) {
			t.Helper()
			near, far := pipe(t)
			go func() {
				if c, err := Accept(t.Context(), near, inUse); err == nil {
					_, _ = io.WriteString(c, "x")
					_ = c.Close()
				}
			}()
			// The clock of the client stands still: whether a ticket is good is the server's to say.
			c := tls.Client(far, &tls.Config{RootCAs: roots, ServerName: "a", ClientSessionCache: cache, Time: func() time.Time { return now }})
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			return c.ConnectionState().DidResume
		}
		fresh := func() tls.ClientSessionCache { return tls.NewLRUClientSessionCache(1) }
		old := fresh()
		if connect(old) {
			t.Error("resumed without a ticket")
		}
		kept := &frozen{ClientSessionCache: old}
		clock = now.Add(2 * day)
		if !connect(kept) {
			t.Errorf("%s: a ticket of two days ago is refused", tls.VersionName(version))
		}
		clock = now.Add(9 * day)
		connect(fresh()) // makes a key
		if connect(kept) {
			t.Errorf("%s: a ticket of nine days ago is taken", tls.VersionName(version))
		}
		clock = now
		inUse = config()
		young := fresh()
		connect(young)
		kept = &frozen{ClientSessionCache: young}
		if !connect(kept) {
			t.Error("a young ticket is refused")
		}
		if inUse = config(); connect(kept) {
			t.Errorf("%s: a ticket of another Config is taken", tls.VersionName(version))
		}
	}
}

// frozen keeps the ticket that it has.
type frozen struct{ tls.ClientSessionCache }

func (*frozen) Put(string, *tls.ClientSessionState) {}
