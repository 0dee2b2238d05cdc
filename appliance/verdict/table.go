package verdict

// This file is long because it has a row for every condition.

import (
	"cmp"
	"fmt"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// Effect is the effect of a problem on the Service that it is about.
type Effect uint8

const (
	// Nothing: clients are served as it is written.
	Nothing Effect = iota
	// Fails: an error keeps clients from being served at a port or an address that was asked for. The Service is not Ready.
	Fails
	// FailsAlways is Fails, for a warning too.
	FailsAlways
	// Stays: an error keeps the written version from coming into force, and the last version stays. The Service is Ready
	// if that is served, and not Programmed.
	Stays
)

// Grouping selects the problems that have one cause.
type Grouping uint8

const (
	// ByObject joins the problems of one object, or those of the box with the same message.
	ByObject Grouping = iota
	// ByCause joins problems with the same Cause, whatever objects they are about.
	ByCause
)

// Row describes a condition. To add one: report a problem whose Reason is a constant reasonXxx or ReasonXxx (or a
// literal of a field Reason), where its facts are; add its row here; make it and repair it in a test, as Test817
// of appliance/reconcile does; run go test ./appliance/verdict -run TestManual -update, which rewrites docs/conditions.md.
// The tests of this package fail for a Reason without a row and a row without a Reason.
type Row struct {
	Reason string
	// Severity is wire.SeverityError or wire.SeverityWarning, whatever was reported; "": as reported, which depends on
	// the case.
	Severity string
	Effect   Effect
	By       Grouping
	// Text is an example, or what the condition means, for the manual.
	Text string
	// Next is the next step as installed by the package, and Plain without systemd; "": the same. NAME, NS, PLACE, FILE and KEY
	// stand for the Service, its namespace, the file and line, the file, and the annotation.
	Next, Plain string
}

const explainNext = "svcctl explain svc/NAME -n NS"

// Table has a row for each Reason.
var Table = []Row{
	// Services without an endpoint.
	{Reason: "NoEndpoints", Effect: FailsAlways, Text: "it has no endpoint: no EndpointSlice names one; a warning when a slice has `endpoints: []`, which means none on purpose. For the first 10 s of a Service it is not shown", Next: explainNext},
	{Reason: "NoReadyEndpoint", Severity: wire.SeverityError, Effect: Fails, Text: "none of its 3 endpoints takes new connections: not ready, taken out, or of weight 0", Next: "svcctl describe svc/NAME -n NS"},
	{Reason: "PortMismatch", Severity: wire.SeverityError, Effect: Fails, Text: "no endpoint has a port named \"http\"; they have \"web\"", Next: "name the port alike in the Service and its EndpointSlices (PLACE)"},
	{Reason: "NoLocalEndpoint", Severity: wire.SeverityError, Effect: Fails, Text: "the policy is Local, and none of its 3 endpoints has nodeName gw1: clients get no answer from this box", Next: "remove nodeName of the endpoints, or set the policy to Cluster"},
	{Reason: "OrphanSlice", Severity: wire.SeverityWarning, Text: "EndpointSlice web-1 names Service wbe, which does not exist. Did you mean web?", Next: "correct its label kubernetes.io/service-name (PLACE)"},
	{Reason: "OtherFamily", Effect: Fails, Text: "all endpoints are of another family than an address of the Service, whose clients are refused; a warning with PreferDualStack, which takes what there is", Next: explainNext},
	{Reason: "NoSuchPort", Text: "some of its Pods have no container port for a targetPort", Next: explainNext},

	// Health of endpoints.
	{Reason: "FailingOpen", Effect: Fails, By: ByCause, Text: "both endpoints are down, so traffic still goes to both of them; a warning when fewer are up than svcctl.io/health-check-min-healthy asks for", Next: "svcctl health svc/NAME -n NS"},
	{Reason: "EndpointRefuses", Effect: Fails, By: ByCause, Text: "1 of 3 endpoints without a health check refuses connections of clients and of this box; an error when the port has no other one", Next: explainNext},
	{Reason: "EndpointSilent", Effect: Fails, By: ByCause, Text: "1 of 3 endpoints without a health check does not answer clients, nor this box; an error when the port has no other one", Next: explainNext},
	{Reason: "EjectBlind", Severity: wire.SeverityWarning, Text: "endpoints that refuse connections are not taken out by svcctl.io/eject: net.netfilter.nf_conntrack_events is 0", Next: "svcctl doctor"},
	{Reason: "EndpointDown", Severity: wire.SeverityWarning, By: ByCause, Text: "1 of 3 endpoints is down and gets no new connections; grouped by endpoint over all Services", Next: "svcctl health"},
	{Reason: "EndpointFull", Text: "an endpoint has as many open connections as the Service allows", Next: "svcctl top svc/NAME -n NS"},
	{Reason: "ProbeRefused", Text: "a probe of a Pod cannot be made as a health check", Next: explainNext},
	{Reason: "CheckNotMade", Text: "health checks are not made: the host lacks something, as file descriptors, or there are too many", Next: "svcctl health"},
	{Reason: "ChecksLate", Text: "there are more checks than this host makes in time", Next: "svcctl health"},
	{Reason: "BadEndpointAddress", Text: "an endpoint is left out: no packet may be sent to its address", Next: "correct the address (PLACE)"},
	{Reason: "SharedAddress", Text: "two Pods have one address", Next: "correct the Pod (PLACE)"},

	// Addresses and ports that were asked for.
	{Reason: "Pending", Severity: wire.SeverityError, Effect: Fails, Text: "it has no load balancer IP: there is no pool for it, or all addresses are taken", Next: "svcctl admin alloc; add a pool by loadBalancerPool in /etc/svcctl/svcctl.yaml, or an IPAddressPool", Plain: "svcctl admin alloc; add a pool by --load-balancer-pool, or an IPAddressPool"},
	{Reason: "RangeFull", Effect: Stays, Text: "no free value is left in a range of cluster IPs or node ports", Next: "svcctl admin alloc lists the holders"},
	{Reason: "OutsideRange", Effect: Stays, Text: "a value lies outside of all ranges", Next: "svcctl admin alloc lists the ranges"},
	{Reason: "Conflict", Effect: Stays, Text: "another owner has the object, or another Service has an allocated value of it", Next: "svcctl admin alloc lists the holders"},
	{Reason: "PortConflict", Severity: wire.SeverityError, Effect: Fails, Text: "another Service, which asked first, has a port at an address, or a node port: it is not served there", Next: "choose another address or port (PLACE): svcctl admin alloc lists the holders"},
	{Reason: "HostAddress", Effect: Fails, Text: "an address belongs to this box, or to a host beside it, and is not served", Next: "choose another address (PLACE)"},
	{Reason: "OutsideExternalIPRange", Effect: Fails, Text: "an external IP lies in no --external-ip-range", Next: "choose another address (PLACE)"},
	{Reason: "ServiceRange", Effect: Fails, Text: "an external IP lies in the range of cluster IPs", Next: "choose another address (PLACE)"},
	{Reason: "NotUnicast", Effect: Fails, Text: "an external IP is a multicast, broadcast or reserved address", Next: "choose another address (PLACE)"},
	{Reason: "FamilyNotServed", Severity: wire.SeverityError, Effect: Fails, Text: "an external IP is of a family that the Service has no cluster IP of", Next: "add the family to spec.ipFamilies (PLACE)"},
	{Reason: "PortInUse", Effect: Fails, Text: "a program of this box listens at a port of the Service", Next: "stop that program, or choose another port (PLACE)"},
	{Reason: "NotInternal", Effect: Fails, Text: "it is to be internal, and its address is not", Next: explainNext},
	{Reason: "RangeNotServed", Effect: Fails, Text: "a range of ports is not served", Next: explainNext},

	// Announcements.
	{Reason: "NotAnnounced", Severity: wire.SeverityError, Effect: Fails, By: ByCause, Text: "192.0.2.117 is announced nowhere: the announcer has no interface in its network, or every router is down", Next: explainNext + " lists the ways"},
	{Reason: "NotAdvertised", Severity: wire.SeverityError, Effect: Fails, By: ByCause, Text: "192.0.2.117 is announced nowhere: no L2Advertisement or BGPAdvertisement covers it, and it lies in a network of the box", Next: explainNext + " lists the ways"},
	{Reason: "Drained", Effect: Fails, By: ByCause, Text: "this box is drained and announces no address: always the first line; an error when no other box is known to announce them", Next: "svcctl announce undrain"},
	{Reason: "AnnouncerMissing", Effect: Fails, By: ByCause, Text: "3 addresses are announced nowhere: the announcer is not running; a warning while nothing has to be announced", Next: "systemctl enable --now svcctl-announce", Plain: "svcctl announce"},
	{Reason: "AddressConflict", Severity: wire.SeverityError, Effect: Fails, Text: "the host with the Ethernet address 52:54:00:12:34:56 answers for an address", Next: "take the address from that host, or choose another one"},
	{Reason: "GroupDisagrees", Text: "two boxes of an election have different addresses", Next: "svcctl announce status, on both boxes"},
	{Reason: "PeerDown", Text: "there is no BGP session with a router", Next: "svcctl announce status"},
	{Reason: "Announcer", Text: "something keeps the announcer from announcing", Next: "svcctl announce status"},
	{Reason: "BadConfiguration", Text: "an object of MetalLB's kinds cannot be used", Next: "correct it (PLACE)"},
	{Reason: "BoxesDiffer", Text: "adopted connections need the same endpoints on all boxes", Next: explainNext},
	{Reason: "SharedEndpoint", Text: "two Services with adopted connections share an endpoint", Next: explainNext},

	// TLS and the relay.
	{Reason: "TLSNotTerminated", Effect: Fails, Text: "TLS is asked for, and nothing terminates it: the port is not served in the clear", Next: explainNext},
	{Reason: "SecretUnusable", Effect: Fails, Text: "the Secret with the certificate does not exist or cannot be used", Next: "svcctl describe secret/…; correct it (PLACE)"},
	{Reason: "CertificateExpires", Text: "a certificate expires soon; an error when it has expired", Effect: Fails, Next: "replace the Secret: the new one is used within seconds"},
	{Reason: "Certificate", Text: "the certificate of the API expires, has expired, or cannot be used", Next: "svcctl doctor"},
	{Reason: "BackendUnchecked", Text: "the certificates of endpoints are not verified", Next: explainNext},
	{Reason: "NotRelayed", Effect: Fails, Text: "a port is to be relayed and cannot be", Next: explainNext},
	{Reason: "NoRelay", Effect: Fails, Text: "the relay has no listener for a port", Next: explainNext},
	{Reason: "RelayLoop", Effect: Fails, Text: "an endpoint is a port that this box relays: it is left out", Next: "write the address and port of the server itself (PLACE)"},
	{Reason: "RelayFull", Text: "the relay refuses connections at its limit", Next: "svcctl top svc/NAME -n NS"},
	{Reason: "LoopbackListenFailed", Effect: Fails, Text: "a listener on a loopback address cannot be opened", Next: explainNext},
	{Reason: "NotLoopback", Effect: Fails, Text: "a listener is to have an address that is no loopback address", Next: explainNext},
	{Reason: "ProtocolNotRelayed", Effect: Fails, Text: "only TCP and UDP are relayed", Next: explainNext},
	{Reason: "NamesNothing", Effect: Fails, Text: "a server name leads to a Service that does not exist", Next: explainNext},
	{Reason: "FailedToStartServiceHealthcheck", Effect: Fails, Text: "the health-check node port cannot be opened", Next: explainNext},

	// Settings of Services.
	{Reason: "InvalidAnnotation", Effect: Fails, Text: "the value of an annotation cannot be used; an error when a port is not served for it", Next: "correct it (PLACE): svcctl explain annotations KEY"},
	{Reason: "UnknownValue", Effect: Fails, Text: "the value of an annotation is not known", Next: "correct it (PLACE): svcctl explain annotations KEY"},
	{Reason: "UnknownSourceSet", Effect: Fails, Text: "there is no source set of a name: nobody is let in", Next: "name a --source-set of the box"},
	{Reason: "InvalidSourceSets", Effect: Fails, Text: "the names of source sets cannot be read", Next: "correct it (PLACE)"},
	{Reason: "SourceSet", Text: "the file of a source set cannot be read", Next: "correct the file"},
	{Reason: "NoEffect", Text: "an annotation or a field has no effect here", Next: "svcctl explain annotations KEY"},
	{Reason: "NotServed", Effect: Fails, Text: "something of it cannot be served here, and is left out", Next: explainNext},
	{Reason: "NotSupported", Effect: Fails, Text: "the kernel of this box lacks what a setting needs", Next: "svcctl doctor"},
	{Reason: "LimitNeverReached", Text: "a limit is never reached", Next: explainNext},
	{Reason: "StickyTwice", Text: "two settings send a client to its former endpoint", Next: explainNext},
	{Reason: "WeightOfNobody", Text: "a weight names no endpoint", Next: explainNext},
	{Reason: "OutOfNobody", Text: "an annotation takes out an address that is no endpoint", Next: explainNext},
	{Reason: "WeightsUnused", Text: "weights have no effect with an algorithm", Next: explainNext},
	{Reason: "TooManyEndpoints", Text: "a port has more endpoints than an algorithm has slots for", Next: explainNext},
	{Reason: "RetrySame", Text: "a client without an answer would be sent to the same endpoint again", Next: explainNext},
	{Reason: "RangeByHash", Text: "an algorithm does not hold for a range of ports", Next: explainNext},
	{Reason: "UnreadableAccess", Text: "a setting that restricts clients cannot be read", Effect: Fails, Next: "correct it (PLACE)"},
	{Reason: "ServiceHasSelector", Text: "an Endpoints object is not used: its Service has a selector", Next: "remove spec.selector, or name the endpoints in an EndpointSlice"},
	{Reason: "NotMirrored", Text: "something of an Endpoints object is left out", Next: "correct it (PLACE)"},
	{Reason: "BridgedEndpoints", Text: "an endpoint behind a bridge does not reach itself through the Service", Next: "svcctl doctor"},

	// Files and objects.
	{Reason: "Syntax", Effect: Stays, Text: "a document is not YAML or JSON: its last valid version stays in force", Next: "correct PLACE; `svcctl validate FILE` checks it"},
	{Reason: "Encoding", Effect: Stays, Text: "a file is not UTF-8", Next: "correct PLACE"},
	{Reason: "LimitExceeded", Effect: Stays, Text: "a document exceeds a limit", Next: "correct PLACE: docs/manifests.md lists the limits"},
	{Reason: "DuplicateKey", Effect: Stays, Text: "a key is there twice", Next: "correct PLACE"},
	{Reason: "UnknownField", Effect: Stays, Text: "the kind has no such field", Next: "correct PLACE; `svcctl explain KIND` lists the fields"},
	{Reason: "WrongType", Effect: Stays, Text: "a value has the wrong type", Next: "correct PLACE"},
	{Reason: "Required", Effect: Stays, Text: "kind, apiVersion or name is missing", Next: "correct PLACE"},
	{Reason: "UnsupportedVersion", Effect: Stays, Text: "a kind is served in another version", Next: "correct PLACE"},
	{Reason: "AmbiguousText", Text: "unquoted yes, no, on, off", Next: "quote it (PLACE)"},
	{Reason: "IgnoredField", Text: "a field of Kubernetes has no effect here", Next: "remove it (PLACE)"},
	{Reason: "FieldValueInvalid", Effect: Stays, Text: "the value of a field is refused: the last valid version stays in force", Next: "correct PLACE"},
	{Reason: "FieldValueRequired", Effect: Stays, Text: "a field is missing", Next: "correct PLACE"},
	{Reason: "FieldValueNotSupported", Effect: Stays, Text: "a field has none of its values", Next: "correct PLACE"},
	{Reason: "FieldValueForbidden", Effect: Stays, Text: "a field may not be set here", Next: "correct PLACE"},
	{Reason: "FieldValueDuplicate", Effect: Stays, Text: "a value is there twice", Next: "correct PLACE"},
	{Reason: "FieldValueTooLong", Effect: Stays, Text: "a value is too long", Next: "correct PLACE"},
	{Reason: "FieldValueTooMany", Effect: Stays, Text: "a list is too long", Next: "correct PLACE"},
	{Reason: "Unmerged", Effect: Stays, Text: "a document cannot be joined with what clients of the API added", Next: "correct PLACE"},
	{Reason: "Unusual", Text: "accepted, but strange", Next: explainNext},
	{Reason: "Unpinned", Text: "an allocated value is not written into its file", Next: "svcctl admin pin -f FILE"},
	{Reason: "Unreadable", Text: "a file or directory cannot be opened or read: what it held stays in force", Next: "namei -l FILE"},
	{Reason: "DirectoryUnavailable", Text: "a watched directory is gone, or empty without a trace: what it held stays in force", Next: "put it back; `svcctl confirm --removals` confirms a removal"},
	{Reason: "Polling", Text: "changes of a directory are found by looking", Next: "svcctl doctor"},
	{Reason: "LastGoodNotSaved", Text: "a restart would not have the last good content of a file", Next: "svcctl doctor"},
	{Reason: "GitLock", Text: "a directory is not read while git works in it", Next: "wait for git, or remove its stale lock"},

	// Changes that wait.
	{Reason: "MassRemovalHeld", Text: "412 Services vanished from the manifests and stay in force", Next: "svcctl confirm --removals"},
	{Reason: "UnknownServicesHeld", Text: "the kernel serves what no object declares", Next: "svcctl confirm --removals"},
	{Reason: "NotConfirmed", Text: "nobody confirmed a trial: files are held as before", Next: "svcctl confirm takes the files as they are"},
	{Reason: "TrialHeldBack", Text: "whether a trial was confirmed is not known on this box", Next: "connect it to its fleet: svcctl get boxes"},
	{Reason: "RolloutStopped", Text: "a rollout has stopped", Next: "svcctl fleet rollout status"},

	// The box.
	{Reason: "DiskFailed", Severity: wire.SeverityError, Text: "nothing can be stored; what is stored stays in force", Next: "systemctl restart svcctl, once the disk is right", Plain: "restart it, once the disk is right"},
	{Reason: "DiskFull", Severity: wire.SeverityError, Text: "nothing can be stored; what is in force stays", Next: "df /var/lib/svcctl", Plain: "df, of --data-dir"},
	{Reason: "RefusedByKernel", Severity: wire.SeverityError, Effect: Stays, Text: "the kernel refused a Service: its last version stays in force", Next: "svcctl doctor"},
	{Reason: "ForeignInterference", Text: "another program changes svcctl's tables again and again", Next: "svcctl doctor"},
	{Reason: "Host", Text: "a setting of the host keeps Services from working", Next: "svcctl doctor"},
	{Reason: "StaleConnections", Text: "connections to endpoints that are gone cannot be deleted", Next: "svcctl doctor"},
	{Reason: "NoRetry", Text: "connections without an answer are not tried at another endpoint", Next: "svcctl doctor"},
	{Reason: "NoFlows", Text: "the ends of connections are not seen", Next: "svcctl doctor"},
	{Reason: "ConnectionLog", Text: "the log of connections cannot be written", Next: "svcctl doctor"},
	{Reason: "NoFeedback", Text: "open connections are not counted for balancing", Next: "svcctl doctor"},
	{Reason: "NotCounted", Text: "open connections are not counted", Next: "svcctl doctor"},

	// Fleets.
	{Reason: "SourceDiffers", Text: "this box has something else in a directory than is in force", Next: "svcctl fleet source list"},
	{Reason: "SourceBehind", Text: "this box has something older in a directory than is in force", Next: "svcctl fleet source list"},
	{Reason: "SourceHasNoReader", Text: "no box reads a directory", Next: "svcctl fleet source list"},
	{Reason: "FleetTokens", Text: "this box gets no news of its fleet", Next: "svcctl get boxes"},
	{Reason: "FleetReport", Text: "this box cannot report to its fleet", Next: "svcctl get boxes"},
	{Reason: "FleetForeign", Text: "something else than a box writes into the fleet's keys of etcd", Next: "svcctl fleet status, with --fleet and --etcd"},
	{Reason: "FleetReplica", Text: "the replica on this box cannot be written", Next: "df, of --data-dir"},
}

var rows = func() map[string]*Row {
	m := make(map[string]*Row, len(Table))
	for i := range Table {
		m[Table[i].Reason] = &Table[i]
	}
	return m
}()

// fleetRow stands for the states of a member of a fleet, whose Reason is "Fleet" and the state.
var fleetRow = Row{Reason: "Fleet…", Text: "this box does not follow its fleet; what is in force stays", Next: "svcctl get boxes"}

// unknown stands for a Reason without a row, which a test refuses: errors count as they are reported.
var unknown = Row{Effect: Fails, Next: explainNext}

// rowOf returns the row of a Reason.
func rowOf(reason string) *Row {
	if r := rows[reason]; r != nil {
		return r
	}
	if strings.HasPrefix(reason, "Fleet") {
		return &fleetRow
	}
	return &unknown
}

// Severity returns the severity of a problem that was reported with one.
func Severity(reason, reported string) string {
	if s := rowOf(reason).Severity; s != "" {
		return s
	}
	return reported
}

// fails reports whether a problem keeps its Service from being Ready.
func fails(p *wire.Problem) bool {
	switch e := rowOf(p.Reason).Effect; e {
	case Fails:
		return p.Severity == wire.SeverityError
	case FailsAlways:
		return true
	}
	return false
}

// stays reports whether a problem keeps the newest version of its object from coming into force.
func stays(p *wire.Problem) bool {
	return p.Severity == wire.SeverityError && rowOf(p.Reason).Effect == Stays
}

// next returns the next step for a problem.
func next(p *wire.Problem, packaged wire.Packaged) string {
	r := rowOf(p.Reason)
	text := r.Next
	if !packaged && r.Plain != "" {
		text = r.Plain
	}
	place := p.File
	if place != "" && p.Line > 0 {
		place = fmt.Sprintf("%s:%d", place, p.Line)
	}
	if place == "" {
		text = strings.Replace(strings.Replace(text, " (PLACE)", "", 1), "correct PLACE", "correct it", 1)
	}
	if key, is := strings.CutPrefix(p.Field, "metadata.annotations["); is {
		text = strings.Replace(text, "KEY", strings.TrimSuffix(key, "]"), 1)
	}
	text = strings.Replace(text, " KEY", "", 1)
	namespace, name, is := strings.Cut(strings.TrimPrefix(p.Object, service), "/")
	if !is || !strings.HasPrefix(p.Object, service) {
		if text == explainNext {
			return ""
		}
		namespace, name = "NAMESPACE", "NAME"
	}
	return strings.NewReplacer("NAME", name, "NS", namespace, "PLACE", place, "FILE", cmp.Or(p.File, "FILE")).Replace(text)
}

// service begins the text of a reference to a Service (object.Ref.String).
const service = "Service "
