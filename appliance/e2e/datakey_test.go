package e2e

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Test581_values_at_rest_are_encrypted once there is a key: nothing of a Secret is in the data directory, restarts find what
// was there, and without the key nothing starts, while packets go on.
func Test581_values_at_rest_are_encrypted(t *testing.T) {
	const secret = "c2VjcmV0IG9mIGV2ZXJ5Ym9keQ==" // base64, as Secrets have it
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	v := b.verbs(t)
	v.does(0, "apply", "-f", v.file("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {password: "+secret+"}\n"))
	stored := func() bool {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(b.svcctl.Data, "state.db*"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte(secret)) {
				return true
			}
		}
		return false
	}
	if !stored() {
		t.Fatal("the Secret is not looked for as it is stored")
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.svcctl.Stop()
	b.svcctl.Env = append(b.svcctl.Env, "SVCCTL_DATA_KEY_FILE="+key)
	for range 2 {
		b.svcctl.Start()
		if got := v.does(0, "get", "secret", "s", "-o", "jsonpath={.data.password}"); got != secret {
			t.Errorf("the Secret is %q", got)
		}
		if stored() {
			t.Error("the Secret is in the data file")
		}
		b.svcctl.Stop()
	}
	out, errOut, err := b.GW1.Run(binary, append([]string{"serve", "--manifests", b.svcctl.Manifests.Path, "--data-dir", b.svcctl.Data, "--socket", b.svcctl.Socket}, b.flags.args()...)...)
	if err == nil || !strings.Contains(out+errOut, "is encrypted: give the key of it with --data-key-file") {
		t.Errorf("without the key: %v\n%s%s", err, out, errOut)
	}
	b.serves(t, "while nothing runs")
}
