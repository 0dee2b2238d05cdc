package wire

// KernelPlan lists the changes of objects and of the kernel: the answer to POST /svcctl/v1/plan.
type KernelPlan struct {
	// Revision is the revision of the objects that the plan begins with.
	Revision uint64 `json:"revision"`
	// Objects has the objects that would change, or would be refused.
	Objects []PlannedObject `json:"objects"`
	// Services has the change in words, by Service.
	Services []PlannedService `json:"services"`
	// Tables has it in nft's terms, by family; empty: nothing changes in the kernel.
	Tables []PlannedTable `json:"tables"`
	// Problems has the problems that the Services would have and do not have now.
	Problems []Problem `json:"problems,omitempty"`
	// Undecided are sentences about what depends on more than objects, as on checks that were not made yet.
	Undecided []string `json:"undecided,omitempty"`
}

// The results of planned objects, in addition to Created, Configured and Refused.
const (
	// Removed: it goes. Of an object that is applied: it was being deleted, and the last finalizer is taken away.
	Removed = "removed"
	// Held: no file has a document for it any more, and it stays until `svcctl confirm --removals`.
	Held = "held"
)

// PlanRemoval is an object that a plan is to be without.
type PlanRemoval struct {
	// Path is that of the object below the API, "/api/v1/namespaces/default/services/web".
	Path string `json:"path"`
	UID  string `json:"uid,omitempty"` // that it must have; "": any
}

// PlannedObject is an object that a change is about.
type PlannedObject struct {
	Object string `json:"object"` // "Service default/web"
	// Did is created, configured, removed, held or refused.
	Did string `json:"did"`
	// Values lists the values that it would get: "cluster IP 10.96.0.7", "node port 30123 (http)".
	Values []string `json:"values,omitempty"`
	// Message is the reason of a refused or held object, with file and line where a file declares it.
	Message string `json:"message,omitempty"`
	// Document is the place of a refused object among those that were sent, from 1, and Status the whole refusal; 0
	// and nil of one that a file declares.
	Document int      `json:"document,omitempty"`
	Status   *Failure `json:"status,omitempty"`
}

// PlannedService has the changes of a Service.
type PlannedService struct {
	Service string          `json:"service"` // "namespace/name"
	Changes []PlannedChange `json:"changes"`
}

// What a PlannedChange is about.
const (
	OfFrontend = "frontend"
	OfEndpoint = "endpoint"
	OfPort     = "port"
)

// How a PlannedChange goes on.
const (
	Begins  = "begins"
	Ends    = "ends"
	Changes = "changes"
)

// PlannedChange is one change of a Service.
type PlannedChange struct {
	Did string `json:"did"` // begins, ends or changes
	Of  string `json:"of"`  // frontend, endpoint or port
	// Port is the name of the Service's port, "" if it has none; Protocol and Family are those of the port.
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	// Name is the address and port of a frontend or endpoint; of a node port the port alone.
	Name string `json:"name,omitempty"`
	// What names the aspect that changes, From and To are its values.
	What string `json:"what,omitempty"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// What happens to a table, set or chain as a whole.
const (
	Added   = "added"
	Deleted = "deleted"
	Changed = "changed"
)

// PlannedTable has the changes of the table of one family.
type PlannedTable struct {
	Family string `json:"family"` // ip or ip6
	// Did is added or deleted, or empty: the table stays.
	Did    string         `json:"did,omitempty"`
	Sets   []PlannedSet   `json:"sets"`
	Chains []PlannedChain `json:"chains,omitempty"`
	// Others are counters and ct timeouts.
	Others []PlannedChain `json:"others,omitempty"`
}

// PlannedSet has the elements of a set or map that change, as nft writes them.
type PlannedSet struct {
	Name string `json:"name"`
	// Did is added or deleted, with all elements, or empty: the set stays.
	Did     string   `json:"did,omitempty"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	// Changed are keys that stay and get other data.
	Changed []ElementChange `json:"changed,omitempty"`
	// Forgotten are endpoints: remembered clients of theirs are removed. Capped is the longest time that remembered
	// clients have left afterwards.
	Forgotten []string `json:"forgotten,omitempty"`
	Capped    Duration `json:"capped,omitempty"`
}

// ElementChange is an element before and after.
type ElementChange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// PlannedChain is a chain, with its rules as they would be, or a counter or ct timeout, which have none.
type PlannedChain struct {
	Name  string   `json:"name"`
	Did   string   `json:"did"` // added, deleted or changed
	Rules []string `json:"rules,omitempty"`
}

// Changes reports whether anything would change, in the kernel or among the objects.
func (p *KernelPlan) Changes() bool {
	if len(p.Tables) > 0 {
		return true
	}
	for i := range p.Objects {
		if did := p.Objects[i].Did; did != Refused && did != Held {
			return true
		}
	}
	return false
}

// Refused counts the objects that would be refused.
func (p *KernelPlan) Refused() (n int) {
	for i := range p.Objects {
		if p.Objects[i].Did == Refused {
			n++
		}
	}
	return n
}

// PlanFile is a file that takes the place of one of a watched directory: a line of JSON of the body of
// /svcctl/v1/plan?directory=DIR.
type PlanFile struct {
	Path string `json:"path"` // below the directory
	Data []byte `json:"data"` // base64
}
