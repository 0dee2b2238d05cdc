package kernel

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrStale means that another program committed since the generation the batch was computed
	// for. Nothing was changed: read, diff and commit again.
	ErrStale = errors.New("another program has changed nf_tables; read it again")
	// ErrOutcomeUnknown means that the kernel's answer to a batch was lost: it was
	// committed as a whole, or not at all. Read before the next Commit.
	ErrOutcomeUnknown = errors.New("the kernel's answer was lost, so nf_tables must be read again")
	// ErrPermission means that the process may not change nf_tables, or that another
	// process addOwnPort the table.
	ErrPermission = errors.New("no permission to change nf_tables: run as root or with CAP_NET_ADMIN")
	// ErrTooBig means that the batch, or a single rule in it, is larger than a
	// netlink message can be. Nothing was changed: commit it in parts.
	ErrTooBig = errors.New("the transaction is larger than netlink accepts")
	// ErrUnsupported means that the kernel lacks something the product needs.
	ErrUnsupported = errors.New("this kernel cannot run svcctl")
	// ErrChanging means that no reading of the ruleset was complete, because another program kept
	// committing.
	ErrChanging = errors.New("nf_tables is changed faster than it can be read")
)

// OpError names the operation of a batch that the kernel refused. Nothing of the batch was
// changed. The operations behind it may be wrong too.
type OpError struct {
	Op    int           // index in Batch.Ops
	Text  string        // the operation, or the one element of it, in nft syntax
	Errno syscall.Errno // what the kernel answered
	Hint  string        // the kernel's own words, mostly empty
}

func (e *OpError) Error() string {
	text := fmt.Sprintf("the kernel refuses operation %d, `%s`: %v", e.Op, e.Text, e.Errno)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if e.Errno == unix.EPERM {
		text += ": the table belongs to another process"
	}
	return text
}

// Unwrap gives the kernel's error number.
func (e *OpError) Unwrap() error { return e.Errno }

// Is makes a refusal for lack of permission an ErrPermission.
func (e *OpError) Is(target error) bool { return target == ErrPermission && e.Errno == unix.EPERM }
