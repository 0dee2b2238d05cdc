package fleet

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"svcctl.io/svcctl/store/engine"
)

// errOvertaken means that the head has moved, so the transaction does not follow on it.
var errOvertaken = errors.New("the head has moved")

// errGap means that an event does not follow on the last one.
var errGap = errors.New("a commit does not follow on the one before it")

// errNamesake means that another box has the name of a leaf.
var errNamesake = errors.New("another box of this fleet has that name")

var (
	// errDropped ends the streams of leaves, which ask again.
	errDropped = errors.New("this box does not follow as before")
	// errForgotten means that a leaf cannot continue from its position and has to read all objects.
	errForgotten = errors.New("the commits after that one are not to be had any more: read all objects")
	// errNoSuchCommit means that etcd never had the position of a leaf.
	errNoSuchCommit = errors.New("there is no such commit")
)

// heldError is why etcd is not followed, although it answers.
type heldError struct {
	kind Kind
	why  string
}

func (e *heldError) Error() string { return e.why }

// isUnknown reports whether a call that failed may have taken place.
func isUnknown(err error) bool {
	switch codeOf(err) {
	case codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	}
	return true
}

// NoAnswer reports whether a call failed since no answer came: the client of etcd has no other reason.
func NoAnswer(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.Unavailable || codeOf(err) == codes.DeadlineExceeded
}

// isDenied reports whether etcd answers that this box may not ask.
func isDenied(err error) bool {
	code := codeOf(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

// codeOf is the status of a call that failed, codes.Unknown when it has none.
func codeOf(err error) codes.Code {
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		return etcd.Code()
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// isCompacted reports whether etcd, or a core box, does not keep the revision any more.
func isCompacted(err error) bool {
	return errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errForgotten)
}

// fullError is engine.ErrNoSpace of etcd.
type fullError struct{ cause error }

func (e fullError) Error() string {
	return "etcd is full (" + e.cause.Error() + "): compact and defragment it, then disarm the alarm (etcdctl alarm disarm); nothing in force is lost"
}

func (e fullError) Unwrap() []error { return []error{engine.ErrNoSpace, e.cause} }
