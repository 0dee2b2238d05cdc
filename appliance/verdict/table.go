package verdict

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/wire"
)

// Effect is the effect of a problem on its Service.
type Effect uint8

const (
	// Nothing means that clients are served as the object specifies.
	Nothing Effect = iota
	// Fails means that an error keeps clients from being served at a port or an address of the object. The Service is not Ready.
	Fails
	// FailsAlways is like Fails, but applies to warnings too.
	FailsAlways
	// Stays means that an error keeps the newest version of the object from being applied, and the last version stays in force. The Service
	// is not Programmed; it is Ready if the last version is served.
	Stays
)

// Grouping determines how problems are grouped for display.
type Grouping uint8

const (
	// ByObject groups the problems of one object, or those of the box with the same message.
	ByObject Grouping = iota
	// ByCause groups problems with the same Cause, whatever objects they are about.
	ByCause
)

// Row describes a condition, that is, problems with one Reason. To add one: report a problem whose Reason is a constant reasonXxx or ReasonXxx (or a
// literal in a field Reason) where the facts are; add its row to table.txt; cause and resolve it in a test, like Test817 of appliance/reconcile; run
// go test ./appliance/verdict -run TestManual -update, which rewrites docs/reference/conditions.md. The tests of this package fail for a Reason
// without a row and for a row without a Reason.
type Row struct {
	Reason string
	// Severity is wire.SeverityError or wire.SeverityWarning; it overrides the reported severity. "" means that the reported severity applies.
	Severity string
	Effect   Effect
	By       Grouping
	// Text is an example, or an explanation of the condition, for the manual.
	Text string
	// Next is the next step for the user if svcctl was installed as a package, Plain the one without systemd; "" means as Next. In both NAME, NS,
	// PLACE, FILE and KEY stand for the Service, its namespace, the file and line, the file, and the annotation; OBJECT stands for an object of any
	// kind.
	Next, Plain string
}

const explainNext = "svcctl explain svc/NAME -n NS"

//go:embed table.txt
var tableText string

// Table returns the rows of table.txt: one for each Reason. The caller must not modify them.
var Table = sync.OnceValue(func() []Row { return parseTable(tableText) })

func parseTable(text string) (all []Row) {
	effects := map[string]Effect{"fails": Fails, "fails-always": FailsAlways, "stays": Stays}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if value, isField := strings.CutPrefix(line, "\t"); isField {
			row := &all[len(all)-1]
			if next, is := strings.CutPrefix(value, "-> "); is {
				row.Next = next
			} else if plain, is := strings.CutPrefix(value, "plain -> "); is {
				row.Plain = plain
			} else {
				row.Text = value
			}
			continue
		}
		words := strings.Fields(line)
		row := Row{Reason: words[0], Next: explainNext}
		for _, word := range words[1:] {
			switch word {
			case wire.SeverityError, wire.SeverityWarning:
				row.Severity = word
			case "by-cause":
				row.By = ByCause
			default:
				if row.Effect = effects[word]; row.Effect == Nothing {
					panic("table.txt: " + line)
				}
			}
		}
		all = append(all, row)
	}
	return all
}

// rows holds the rows of Table by their Reason.
var rows = sync.OnceValue(func() map[string]*Row {
	m := map[string]*Row{}
	for i, row := range Table() {
		m[row.Reason] = &Table()[i]
	}
	return m
})

// fleetRow is the row for all Reasons "Fleet" followed by the state of a box in its fleet.
var fleetRow = Row{Reason: "Fleet…", Text: "this box does not follow its fleet; what is in force stays", Next: "svcctl get boxes"}

// unknown is the row used for a Reason that is not in the table, which a test prevents. The reported severity applies.
var unknown = Row{Effect: Fails, Next: explainNext}

// rowOf returns the row for a Reason, unknown if there is none.
func rowOf(reason string) *Row {
	if r := rows()[reason]; r != nil {
		return r
	}
	if strings.HasPrefix(reason, "Fleet") {
		return &fleetRow
	}
	return &unknown
}

// Severity returns the severity for a Reason. It is the reported one if the table does not specify one.
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

// stays reports whether a problem keeps the newest version of its object from being applied.
func stays(p *wire.Problem) bool {
	return p.Severity == wire.SeverityError && rowOf(p.Reason).Effect == Stays
}

// next returns the next step for the user to resolve a problem; "" if there is none.
func next(p *wire.Problem, packaged wire.Packaged) string {
	r := rowOf(p.Reason)
	text := r.Next
	if !packaged && r.Plain != "" {
		text = r.Plain
	}
	place := place(p)
	if place == "" {
		text = strings.Replace(strings.Replace(text, " (PLACE)", "", 1), "correct PLACE", "correct it", 1)
	}
	if key, is := strings.CutPrefix(p.Field, "metadata.annotations["); is {
		text = strings.Replace(text, "KEY", strings.TrimSuffix(key, "]"), 1)
	}
	text = strings.Replace(text, " KEY", "", 1)
	kind, of, _ := strings.Cut(p.Object, " ")
	if namespace, name, is := strings.Cut(of, "/"); is {
		text = strings.Replace(text, "OBJECT", fmt.Sprintf("%s/%s -n %s", strings.ToLower(kind), name, namespace), 1)
	}
	namespace, name, is := strings.Cut(strings.TrimPrefix(p.Object, service), "/")
	if !is || !strings.HasPrefix(p.Object, service) {
		if text == explainNext {
			return ""
		}
		namespace, name = "NAMESPACE", "NAME"
	}
	return strings.NewReplacer("NAME", name, "NS", namespace, "PLACE", place, "FILE", cmp.Or(p.File, "FILE")).Replace(text)
}

// service is the prefix of a reference to a Service as text (object.Ref.String).
const service = "Service "
