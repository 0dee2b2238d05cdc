package wire

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Operation is a method on a path of the appliance's own API, as opposed to the Kubernetes API that it also serves.
type Operation struct {
	Method string // GET implies HEAD
	Path   string
	// Admin is set if the operation is only for admins; otherwise readers may use it too.
	Admin bool
	// Shared is set if the operation changes data that all boxes of a fleet share. A leaf box forwards it to a core box.
	Shared bool
	// Does describes the operation, as a clause that follows the method and the path: "returns the status".
	Does string
}

// Route is an Operation with the types of its parameters and of its answer in JSON.
type Route[Query, Answer any] struct{ Operation }

// None is the Query of a route without parameters, and the Answer of one without content.
type None struct{}

// The routes of the appliance's own API. Operations and docs/api.md list each of them.
var (
	GetStatus   = Route[None, Status]{read("status", "returns the status")}
	Wait        = Route[WaitQuery, Status]{read("wait", "returns the status when everything is in the kernel")}
	Release     = Route[None, Released]{change("release", "releases what is held although no object declares it")}
	GetSetup    = Route[None, Setup]{read("setup", "returns the directories, the certificate and the addresses of the box")}
	GetEndpoint = Route[None, Endpoint]{read("endpoint", "returns the address and the CA of the API over TLS")}

	GetService     = Route[ServiceQuery, ServiceState]{read("service", "returns the state of a Service")}
	GetHealth      = Route[ObjectQuery, Health]{read("health", "lists endpoints with health checks")}
	Probe          = Route[ObjectQuery, Probes]{change("probe", "connects to each TCP endpoint of a Service")}
	GetEnvironment = Route[EnvironmentQuery, Environment]{read("env", "lists the environment variables of the Services of a namespace")}
	GetAllocations = Route[AllocationsQuery, Allocations]{read("alloc", "lists the ranges and the holders of their values")}
	Repair         = Route[None, Allocations]{change("alloc/repair", "corrects what does not agree with the Services, and lists the same")}

	GetTraffic     = Route[TrafficQuery, Traffic]{read("traffic", "returns the traffic by Service")}
	GetConnections = Route[ConnectionsQuery, Connections]{read("conns", "lists connections")}
	Kill           = Route[KillQuery, Connection]{change("conns/kill", "ends a connection")}
	Trace          = Route[TraceQuery, TracedPacket]{readAll("trace", "follows packets, one a line of the answer")}

	BeginTrial   = Route[TrialQuery, Trial]{changeAll("trial", "begins a trial, or moves the end of the one that runs")}
	ConfirmTrial = Route[None, Trial]{changeAll("trial/confirm", "confirms the trial")}
	EndTrial     = Route[EndQuery, Trial]{changeAll("trial/end", "ends a trial that has no change")}
	UndoTrial    = Route[None, RolledBack]{changeAll("trial/back", "undoes the trial")}
	Rollback     = Route[RollbackQuery, RolledBack]{changeAll("rollback", "restores the objects of an earlier revision")}
	GetRollout   = Route[None, Rollout]{read("rollout", "returns the rollout that runs, or the last one")}
	BeginRollout = Route[RolloutQuery, Rollout]{changeAll("rollout/begin", "begins a rollout")}
	// MoveRollout maps the actions in RolloutMoves to their routes.
	MoveRollout = map[string]Route[MoveQuery, Rollout]{
		RolloutStart: {changeAll("rollout/start", "starts the rollout")}, RolloutPause: {changeAll("rollout/pause", "pauses the rollout")},
		RolloutResume: {changeAll("rollout/resume", "resumes the rollout")}, RolloutUndo: {changeAll("rollout/undo", "undoes the rollout")},
	}
	Export     = Route[None, None]{readAll("export", "exports everything that is stored, in lines of JSON")}
	Plan       = Route[None, KernelPlan]{change("plan", "returns what objects or files would change in the kernel")}
	GetJournal = Route[JournalQuery, JournalEntry]{readAll("journal", "lists the newest changes, one a line")}
	GetHistory = Route[HistoryQuery, History]{read("history", "lists what happened to problems, endpoints, Services and announcements")}

	GetFleet     = Route[None, Fleet]{read("fleet", "returns the fleet and its boxes")}
	AcceptFleet  = Route[None, Fleet]{changeAll("fleet/accept", "accepts what etcd has, although it went back")}
	GetSources   = Route[None, []FleetSource]{read("fleet/sources", "lists the sources and their readers")}
	TakeSource   = Route[SourceQuery, FleetSource]{changeAll("fleet/source", "makes a box the reader of a source")}
	ForgetSource = Route[SourceQuery, ForgottenSource]{changeAll("fleet/source/forget", "drops a source that no box has any more")}

	GetAnnouncements    = Route[None, Announcements]{read("announcements", "lists the addresses to announce; with watch=true, then their changes")}
	ReportAnnouncements = Route[None, None]{row(Operation{http.MethodPost, own + "announcements/report", false, false, "takes a report of the announcer"})}
)

// Operations returns all operations in the order of their declaration, which the manual follows.
func Operations() []Operation { return slices.Clone(operations) }

var operations []Operation

// row appends an operation to the list that Operations returns.
func row(o Operation) Operation {
	operations = append(operations, o)
	return o
}

// own is the prefix of the paths of the appliance's own API.
const own = "/svcctl/v1/"

func read(path, does string) Operation {
	return row(Operation{http.MethodGet, own + path, false, false, does})
}
func readAll(path, does string) Operation {
	return row(Operation{http.MethodGet, own + path, true, false, does})
}
func change(path, does string) Operation {
	return row(Operation{http.MethodPost, own + path, true, false, does})
}
func changeAll(path, does string) Operation {
	return row(Operation{http.MethodPost, own + path, true, true, does})
}

// WaitQuery is the condition that Wait waits for.
type WaitQuery struct {
	// For is synced (everything accepted up to Revision is in the kernel) or ready (so is everything that the appliance had to apply at its start).
	For      string        `query:"for" required:"true" oneof:"synced,ready"`
	Timeout  time.Duration `query:"timeout" default:"30s" least:"1ns" most:"1h" want:"a duration as 30s or 2m, at most 1h"`
	Revision uint64        `query:"revision"` // 0: everything accepted before the request
}

// ObjectQuery selects a Service. Without Name it selects all Services of the namespace, and without both all Services.
type ObjectQuery struct {
	Namespace string `query:"namespace"`
	Name      string `query:"name"`
}

// AllocationsQuery selects an allocated value. Without one, the response has all holders, and the disagreements with the Services.
type AllocationsQuery struct {
	Value string `query:"value"` // see Holder.Value; "": all
}

// ServiceQuery selects a Service and, optionally, a client for which to determine the endpoints.
type ServiceQuery struct {
	Namespace string `query:"namespace" default:"default"`
	Name      string `query:"name"`
	Client    string `query:"client"` // ADDRESS or ADDRESS:PORT; "": none
}

// EnvironmentQuery names a namespace.
type EnvironmentQuery struct {
	Namespace string `query:"namespace" default:"default"`
}

// namespacePattern matches the names of namespaces: RFC 1123 labels.
var namespacePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`) })

// Complete returns an error if the name of the namespace is not valid.
func (q *EnvironmentQuery) Complete() error {
	if !namespacePattern().MatchString(q.Namespace) {
		return fmt.Errorf("namespace=%q: want lower case letters, digits and '-', at most 63", q.Namespace)
	}
	return nil
}

// ConnectionsQuery selects connections. Empty fields select all.
type ConnectionsQuery struct {
	Namespace string `query:"namespace"`
	Service   string `query:"name"`
	Endpoint  string `query:"endpoint"` // ADDRESS or ADDRESS:PORT
	Client    string `query:"client"`   // an address or a prefix
	Limit     int    `query:"limit" default:"1000" least:"1" most:"100000"`
}

// KillQuery names a connection by Connection.ID.
type KillQuery struct {
	ID uint32 `query:"id" required:"true" want:"the number that svcctl top --connections shows"`
}

// TrialQuery describes a trial to begin, or the new end of the present one.
type TrialQuery struct {
	For   time.Duration `query:"for" required:"true" least:"1s" most:"24h"`
	Files bool          `query:"files"` // changes of files are part of it
}

// EndQuery identifies a trial. ConfirmTrial has no ID, because older servers would ignore the parameter and confirm whichever trial is pending.
type EndQuery struct {
	ID string `query:"id" required:"true" want:"the ID of a trial"`
}

// RollbackQuery describes a rollback.
type RollbackQuery struct {
	Revision uint64 `query:"revision" least:"1"` // revision to restore; 0: the one before the last change by a client
	Last     uint64 `query:"last" least:"1"`     // refuse (409) if a client made a change after this revision; 0: never refuse
	DryRun   string `query:"dryRun"`             // "All", or ""
	Trial    string `query:"trial"`              // ID of the trial that includes the rollback; "" for none
}

// RolloutQuery describes a rollout to begin.
type RolloutQuery struct {
	Steps     string        `query:"steps"` // as in Rollout.Steps, joined by commas
	Bake      time.Duration `query:"bake" least:"0s" most:"168h"`
	Within    time.Duration `query:"within" required:"true" least:"1s" most:"24h"`
	OnFailure string        `query:"onFailure" default:"stop" oneof:"stop,undo"`
}

// MoveQuery identifies a rollout by its ID; "" means the present one.
type MoveQuery struct {
	ID string `query:"id"`
}

// JournalQuery bounds the entries of the journal.
type JournalQuery struct {
	Limit  int  `query:"limit" default:"100" least:"1" most:"10000"`
	Events bool `query:"events"` // include changes of Events
	// Since bounds the age of the entries; 0 means no bound.
	Since     time.Duration `query:"since" least:"0s" most:"87600h" want:"a duration as 90m or 24h"`
	Namespace string        `query:"namespace"` // namespace of the objects; "" for all
	Name      string        `query:"name"`      // Service in Namespace: selects its changes and those of its endpoints
}

// HistoryQuery bounds the entries of the history.
type HistoryQuery struct {
	Since     time.Duration `query:"since" default:"24h" least:"1s" most:"87600h" want:"a duration as 90m or 24h"` // maximum age of the entries
	Limit     int           `query:"limit" default:"100" least:"1" most:"10000"`                                   // maximum number, the newest
	Namespace string        `query:"namespace"`                                                                    // "" for all
	Name      string        `query:"name"`                                                                         // name of a Service in Namespace
}

// SourceQuery names a source of a fleet, and the box that is to read it.
type SourceQuery struct {
	Name string `query:"name"`
	Box  string `query:"box"`
}
