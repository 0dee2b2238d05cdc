package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"svcctl.io/svcctl/store/engine"
)

const (
	// callTimeout is the timeout of one call to etcd. It is longer than the election of a new leader.
	callTimeout = 3 * time.Second
	// firstTry is the timeout of the first attempt to send a commit. It doubles with each attempt, up to callTimeout. Repeated attempts
	// commit only once.
	firstTry = time.Second
	// settleTimeout bounds the wait for the outcome of a commit.
	settleTimeout = 5500 * time.Millisecond
	// followTimeout is the maximum time that a commit waits to receive another commit that came first.
	followTimeout = 5 * time.Second
	// keepaliveTime is the idle time after which a keepalive ping is sent on a connection; etcd allows no shorter time. keepaliveTimeout is the
	// maximum time to wait for its answer.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 2 * time.Second
)

const (
	// beatEvery is the interval of heartbeats, which read the head from etcd. They are needed because a watch without events does not show whether
	// the box is cut off.
	beatEvery = 2 * time.Second
	// beatTimeout is the timeout of a heartbeat's read.
	beatTimeout = 2 * time.Second
	// missedBeats is the number of successive unanswered heartbeats after which the box counts as cut off. One goes unanswered whenever etcd elects a
	// leader.
	missedBeats = 2
	// sweepEvery is the interval at which the box that has the writer's turn (the one that runs the controllers) deletes the remains of large commits
	// that failed.
	sweepEvery = 5 * time.Minute
	// leaseTTL is the time to live, in seconds, of the etcd lease with which a box holds its name and its turns (the right to run the controllers or
	// to read a source).
	leaseTTL = 6
)

// Config configures an Engine, and the functions that administer a fleet from outside of it.
type Config struct {
	// Fleet is the name of the fleet, and Box the name of this box in the fleet.
	Fleet, Box string
	// Endpoints are the URLs of etcd's members.
	Endpoints []string
	// TLS is used for https URLs. If nil, the system's root certificates and no client certificate are used.
	TLS *tls.Config
	// Dir is the data directory that contains the replica.
	Dir string
	// DataKey encrypts Dir at rest, and decrypts the directory that Init or Restore reads; nil: they are not encrypted.
	DataKey *engine.Key
	// Keys are the keys of the fleet that encrypt the values of Secret objects; nil if there are none.
	Keys *engine.Keys
	// Readable reports whether this program can read the value of a key; if nil, it can read all. Secret reports whether the value of a key is
	// encrypted; if nil, none is.
	Readable, Secret func(key string) bool
	// Settings are the settings that must be the same on all boxes, as JSON.
	Settings json.RawMessage
	// Version of the program, for reports.
	Version string
	Log     *slog.Logger
	Words
	Leaf
	Conversion
}

// Words holds names for use in messages: the flag for each field of Settings, without dashes, and the files of the TLS configuration.
type Words struct {
	Flags map[string]string
	Files Files
}

// Leaf configures a leaf: a box that follows other boxes (cores) instead of etcd, and so has no Endpoints.
type Leaf struct {
	// Cores are the URLs of the APIs of boxes that follow etcd. CoreTLS has the CA of their certificates, and the certificate of
	// this box.
	Cores   []string
	CoreTLS *tls.Config

	// hurry divides the times after which a leaf goes back to a core box; 0 means 1. Tests set it.
	hurry time.Duration
}

// Conversion has the functions by which Init and Restore convert the content of a data directory to that of a fleet.
type Conversion struct {
	// Import converts the value of an object from that of a single box to that of the fleet; a nil result leaves the object out. If Import
	// is nil, values stay as they are.
	Import func(key string, value []byte) ([]byte, error)
	// Restored merges the record of a source or a trial. value is the one in the data directory and now the one in etcd, each nil if there is none. A
	// nil result leaves the record out. If Restored is nil, the value in the data directory is used.
	Restored func(key string, value, now []byte) ([]byte, error)
	// First are the initial pairs, including the head, of a fleet that Init creates without a data directory.
	First []engine.Pair
}

func (c *Config) pace() time.Duration { return max(1, c.hurry) }

// prefix returns the prefix of all keys of the fleet.
func (c *Config) prefix() string { return "svcctl/" + c.Fleet + "/" }

// connectAgain is the backoff of gRPC for reconnecting to an etcd member. It is short, so that a member is used soon after its return;
// gRPC's default grows to two minutes.
var connectAgain = backoff.Config{BaseDelay: 250 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// dial returns a client of etcd. It does not wait for a connection.
func (c *Config) dial() (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: c.TLS,
		DialTimeout: callTimeout, DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		MaxCallSendMsgSize: 8 << 20, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(otherMember(len(c.Endpoints))),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: connectAgain, MinConnectTimeout: callTimeout}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// sealing returns the reason that a fleet of the given format cannot store Secrets, nil if it can.
func (c *Config) sealing(of int) error {
	if c.Keys.SealsBy() == "" {
		return errors.New("a fleet keeps Secrets sealed by a key that its boxes share, and this box has none: start it with --fleet-key-file")
	}
	return needsFormat(of, sealedFormat, "sealed Secrets")
}

// seal encrypts the value of a Secret. Other values, and encrypted ones, are returned unchanged.
func (c *Config) seal(key string, value []byte) ([]byte, error) {
	if c.Secret == nil || !c.Secret(key) || engine.IsSealed(value) {
		return value, nil
	}
	sealed, err := c.Keys.Seal(key, value)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w: give the keys of the fleet with --fleet-key-file", key, err)
	}
	return sealed, nil
}

// open decrypts the value of a Secret; other values are returned unchanged.
func (c *Config) open(key string, value []byte) ([]byte, error) {
	if c.Secret == nil || !c.Secret(key) {
		return value, nil
	}
	return c.Keys.Open(key, value)
}

// errOvertaken means that the head has changed, so that a transaction which compared it had no effect.
var errOvertaken = errors.New("the head has moved")

// errGap means that a commit does not directly follow the last one on this box: commits in between were missed.
var errGap = errors.New("a commit does not follow on the one before it")

// errNamesake means that another box uses the name of a leaf.
var errNamesake = errors.New("another box of this fleet has that name")

var (
	// errDropped ends the streams of leaves because this box's history was replaced. The leaves connect again.
	errDropped = errors.New("this box does not follow as before")
	// errForgotten means that a leaf cannot continue from its position, since the commits after it are not kept any more, and has to read
	// all objects.
	errForgotten = errors.New("the commits after that one are not to be had any more: read all objects")
	// errNoSuchCommit means that etcd never had the commit that a leaf gives as its position.
	errNoSuchCommit = errors.New("there is no such commit")
)

// heldError is the reason that etcd's content is not followed, although etcd answers.
type heldError struct {
	kind Kind
	why  string
}

func (e *heldError) Error() string { return e.why }

// isUnknown reports whether a failed call may have taken effect.
func isUnknown(err error) bool {
	switch codeOf(err) {
	case codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	}
	return true
}

// NoAnswer reports whether a call failed for lack of an answer in time, rather than by an error that etcd returned.
func NoAnswer(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.Unavailable || codeOf(err) == codes.DeadlineExceeded
}

// isDenied reports whether etcd refused a call for lack of permission.
func isDenied(err error) bool {
	code := codeOf(err)
	return code == codes.PermissionDenied || code == codes.Unauthenticated
}

// codeOf returns the gRPC status code of an error, codes.Unknown if it has none.
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

// isCompacted reports whether an error means that etcd, or a core box, does not keep the revision any more.
func isCompacted(err error) bool {
	return errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errForgotten)
}

// fullError is an engine.ErrNoSpace that is returned if the etcd database is full.
type fullError struct{ cause error }

func (e fullError) Error() string {
	return "etcd is full (" + e.cause.Error() + "): compact and defragment it, then disarm the alarm (etcdctl alarm disarm); nothing in force is lost"
}

func (e fullError) Unwrap() []error { return []error{engine.ErrNoSpace, e.cause} }

const (
	// rounds is the average number of times that each etcd endpoint is tried for a call that members refuse because of their state. Concurrent calls
	// share the rotation of endpoints.
	rounds = 4
	// betweenRounds is the wait before members that refused a call are tried again: the election of a leader takes a second or more.
	betweenRounds = 100 * time.Millisecond
)

// otherMember returns a gRPC interceptor that sends a call to the next etcd member if one cannot serve it. A learner serves no calls, and a member
// that is cut off from the majority has no leader. The call requires a leader, so that such a member refuses it instead of leaving it unanswered. A
// call that is refused for these reasons had no effect.
func otherMember(endpoints int) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		ctx = clientv3.WithRequireLeader(ctx)
		for n := 1; ; n++ {
			if err = invoke(ctx, method, req, reply, cc, opts...); !isOfMember(err) || n == rounds*endpoints {
				return err
			}
			if n%endpoints != 0 {
				continue
			}
			if !sleep(ctx, betweenRounds) {
				return err
			}
		}
	}
}

// errLearner is the error by which an etcd member refuses a call because it is a learner (it does not vote yet).
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// isOfMember reports whether an etcd member refused a call because of the member's state (a learner, or without a leader).
func isOfMember(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, errLearner) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// leaseTimeout is the timeout of one attempt of keepLease. It keeps a member that hangs from using up the time of the heartbeat.
const leaseTimeout = time.Second

// keepLease renews a lease, and tries another member where one does not answer. gone is set if the lease has expired or was
// revoked; after any other error it may still exist.
func keepLease(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (gone bool, err error) {
	for ctx.Err() == nil {
		ask, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), leaseTimeout)
		_, err = client.KeepAliveOnce(ask, lease)
		silent := ask.Err() != nil
		cancel()
		if !silent && !isOfMember(err) {
			break
		}
		if silent {
			continue
		}
		sleep(ctx, betweenRounds) // a refusal comes at once
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return true, nil
	}
	return false, err
}

// silentFor is the time after which an unanswered read is sent to another member as well: gRPC keeps the connection to a
// hanging member until keepaliveTime and keepaliveTimeout have passed.
const silentFor = 700 * time.Millisecond

// ask runs a read of etcd, and runs it a second time, at another member, if there is no answer within silentFor. It returns the first successful
// result, or an error if both fail.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx) // the slower question is not waited for
	defer cancel()
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 2)
	put := func() {
		value, err := question(ctx)
		replies <- reply{value, err}
	}
	go put()
	asked := 1
	silent := time.NewTimer(silentFor)
	defer silent.Stop()
	for {
		select {
		case <-silent.C:
			go put()
			asked++
		case r := <-replies:
			if asked--; r.err == nil || asked == 0 {
				return r.value, r.err
			}
		}
	}
}

// longestSetting bounds the value of a setting in a message, in bytes.
const longestSetting = 120

// agree reports whether two JSON documents of settings are equal.
func agree(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || json.Valid(a) && json.Valid(b) && reflect.DeepEqual(fieldsOf(a), fieldsOf(b))
}

// SettingLines formats settings as command-line flags, one in each element, such as "--service-node-port-range 30000-32767". flags maps fields to
// flags (Words.Flags); a field that is not in flags is shown under its own name.
func SettingLines(settings json.RawMessage, flags map[string]string) (lines []string) {
	fields := fieldsOf(settings)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		line := flagOf(field, flags)
		if text := settingText(fields[field]); text != "true" { // a bool flag needs no value
			line += " " + text
		}
		lines = append(lines, line)
	}
	return lines
}

// differences lists the settings in which a box and its fleet differ, with both values.
func differences(here, there json.RawMessage, flags map[string]string) string {
	a, b := fieldsOf(here), fieldsOf(there)
	all := maps.Clone(a)
	maps.Copy(all, b)
	var texts []string
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if x, y := settingText(a[field]), settingText(b[field]); x != y {
			texts = append(texts, fmt.Sprintf("%s is %s here and %s in the fleet", flagOf(field, flags), shortened(x), shortened(y)))
		}
	}
	if texts == nil {
		return "they have another form" // another version has written them
	}
	return strings.Join(texts, "; ")
}

// fieldsOf returns the fields of a JSON object, or none if the JSON is no object.
func fieldsOf(settings json.RawMessage) map[string]any {
	fields := map[string]any{}
	if json.Unmarshal(settings, &fields) != nil || fields == nil {
		return map[string]any{}
	}
	return fields
}

func flagOf(field string, flags map[string]string) string {
	if flag := flags[field]; flag != "" {
		return "--" + flag
	}
	return field
}

// settingText formats a value in the form that its flag takes; "" if there is no value.
func settingText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(value)
}

func shortened(text string) string {
	switch {
	case text == "":
		return "not set"
	case text == "true":
		return "set"
	case len(text) > longestSetting:
		return text[:longestSetting] + "..."
	}
	return text
}

// Kind is the state of a box in its fleet.
type Kind string

// These are the states of a box in its fleet.
const (
	Following Kind = "Following" // the box follows the commits of its fleet
	CutOff    Kind = "CutOff"    // etcd does not answer
	Waiting   Kind = "Waiting"   // the box has no replica, and has not read the objects of its fleet yet
	Lagging   Kind = "Lagging"   // etcd answers, but commits do not arrive
	WentBack  Kind = "WentBack"  // etcd's content is older than that in force on the box, or has another history
	OtherOne  Kind = "OtherFleet"
	Emptied   Kind = "Emptied"  // etcd has no fleet of that name, or no objects of it
	Damaged   Kind = "Damaged"  // the objects in etcd do not match the digest in the head
	Differs   Kind = "Differs"  // the box has other settings than its fleet
	TooNew    Kind = "TooNew"   // a newer version has written records that this one cannot read
	Namesake  Kind = "Namesake" // another box uses the name of this one
	// KeyMissing means that a Secret, or a key that boxes share, is sealed by a key that the box does not have.
	KeyMissing Kind = "KeyMissing"
)

// State is the state of a box as a member of its fleet.
type State struct {
	Kind Kind
	// Why is the reason for the state and what to do next; "" if Kind is Following.
	Why   string
	Since time.Time
	// Revision is the revision of the newest commit that the box has followed. Of is the revision of the newest commit in etcd, as of etcd's last
	// answer.
	Revision, Of uint64
	Epoch        uint64
	// Answered is the time of etcd's last answer.
	Answered time.Time
	// Asked is set once the first attempt to reach etcd since the start has been answered or has failed.
	Asked bool
	// Writer is the box that runs the controllers, "" if there is none or it is unknown.
	Writer string
	// Replica is the last error of writing the replica, nil if writing succeeds.
	Replica error
	// Unreported is the reason why etcd refused the last report of this box; "" if etcd accepted it or did not answer.
	Unreported string
	// Foreign lists the keys of objects that another program has written or removed in etcd; "" if there are none. The box ignores these changes.
	Foreign string
}

// Held reports whether the state is one in which the content of etcd is ignored until an operator confirms it.
func (s *State) Held() bool {
	switch s.Kind {
	case WentBack, OtherOne, Emptied, Damaged:
		return true
	}
	return false
}

// Follows reports whether the box follows the commits of etcd, so that it learns the outcome of its own.
func (s *State) Follows() bool {
	switch s.Kind {
	case Following, Differs, KeyMissing, Namesake:
		return true
	}
	return false
}

// state is the State of this box and the data from which it is derived. It is guarded by position.mu.
type state struct {
	State // presence.State adds the fields that other structs hold
	// differs lists the settings that differ from the fleet's, "" if they agree.
	differs string
	// unreadable is the message about Secrets and shared keys that cannot be decrypted, "" if all can. unreadableSince is when that began. blind is
	// set if a Secret is among them.
	unreadable      string
	unreadableSince time.Time
	blind           bool
	// namesake is why another box has the name of this one, "" if none has. A join does not end it.
	namesake string
	silent   silence
}

// silence holds the errors of the last unanswered calls to the origin (etcd or a core box). While they are set, later calls fail at once, even before
// the heartbeat has decided that the box is cut off. Any answer of the origin clears them.
type silence struct {
	read  error // the error of the last read, if it was not answered
	write error // the error of the last commit, if it was not answered
}

// refusal returns the error of a commit in this state, nil if it is possible.
func (s *state) refusal() error {
	switch {
	case s.Kind != Following && s.Kind != Lagging:
	case s.differs != "":
		return &engine.AwayError{Why: s.differs}
	case s.blind:
		return &engine.AwayError{Why: s.unreadable, Since: s.unreadableSince}
	default:
		return nil
	}
	return &engine.AwayError{Why: s.Why, Since: s.Since}
}
