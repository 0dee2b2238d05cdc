package change

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"svcctl.io/svcctl/api/client"
)

// TestConfirmWithoutAnAnswer: a call that was sent may have taken effect, one that was refused has not.
func TestConfirmWithoutAnAnswer(t *testing.T) {
	const perhaps = "the change may have been confirmed: see `svcctl status` when it runs again"
	for cause, sent := range map[error]bool{io.ErrUnexpectedEOF: true, syscall.ECONNRESET: true, syscall.ECONNREFUSED: false} {
		err := perhapsDone(fmt.Errorf("confirm: %w", &client.UnreachableError{Socket: "/s", Err: cause}), "confirmed")
		if got := strings.Contains(err.Error(), perhaps); got != sent || !errors.As(err, new(*client.UnreachableError)) {
			t.Errorf("%v: %v", cause, err)
		}
	}
	if err := perhapsDone(io.EOF, "confirmed"); err != io.EOF {
		t.Errorf("another error became %v", err)
	}
}
