package simulate

import (
	"io"
	"os"
	"testing"
)

// logOf returns where runs log: LOG names a file.
func logOf(t *testing.T) io.Writer {
	path := os.Getenv("LOG")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
