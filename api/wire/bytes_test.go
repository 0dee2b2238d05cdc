package wire

import "testing"

func TestBinary(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 1023: "1023", 1024: "1.0K", 10 << 10: "10K", 3 << 19: "1.5M", 1 << 40: "1.0T", 1<<64 - 1: "16E"} {
		if number, prefix := Binary(n); number+prefix != want {
			t.Errorf("%d is %s%s, want %s", n, number, prefix, want)
		}
	}
}
