package nft

import "time"

// Batch is an ordered list of operations that the kernel takes as one
// transaction: all of them or none.
type Batch struct{ Ops []Op }

// Empty reports whether there is nothing to do.
func (b *Batch) Empty() bool { return len(b.Ops) == 0 }

// Op is one operation. The set of operations is closed.
type Op interface{ op() Family }

// Element is one element of a set; see Elements for the form of its bytes.
type Element struct{ Key, Data string }

// named is an operation on what has a name in the table of a family.
type named struct {
	Family Family
	Name   string
}

type (
	// AddTable creates the table of a family; one that exists is left as it is.
	AddTable struct{ Family Family }
	// DeleteTable deletes the table of a family with all in it.
	DeleteTable struct{ Family Family }
	// AddCounter creates a counter, at 0.
	AddCounter named
	// DeleteCounter deletes a counter that no rule names any more.
	DeleteCounter named
	// AddSet creates a set without elements.
	AddSet struct {
		Family Family
		Set    Set
	}
	// DeleteSet deletes a set with its elements.
	DeleteSet named
	// AddTimeout creates a timeout object of connection tracking.
	AddTimeout struct {
		Family  Family
		Timeout Timeout
	}
	// DeleteTimeout deletes one that no rule names. Connections that have it get the times of
	// the host from then on.
	DeleteTimeout named
	// AddChain creates a chain without rules.
	AddChain struct {
		Family Family
		Chain  Chain // Rules are not looked at
	}
	// SetRules makes rules the whole content of a chain that exists.
	SetRules struct {
		Family Family
		Chain  string
		Rules  []Rule
	}
	// DeleteChain deletes a chain and its rules.
	DeleteChain named
	// AddElements adds elements to a set. An element that exists with other
	// data is an error (EEXIST): delete it first, in the same batch.
	AddElements struct {
		Family   Family
		Set      Set
		Elements []Element
	}
	// DeleteElements deletes elements, which must exist (ENOENT).
	DeleteElements struct {
		Family   Family
		Set      Set
		Elements []Element // Data is not looked at
	}
	// ForgetData deletes those elements of a dynamic map whose data is in Data:
	// the clients that are remembered on endpoints which are gone. Elements
	// that expire meanwhile are no error.
	ForgetData struct {
		Family Family
		Set    Set
		Data   []string
	}
	// CapTimeouts shortens the life of those elements of a dynamic map that have more
	// left than Timeout to Timeout: a Service remembers its clients for less long.
	CapTimeouts struct {
		Family  Family
		Set     Set
		Timeout time.Duration
	}
)

func (o AddTable) op() Family       { return o.Family }
func (o DeleteTable) op() Family    { return o.Family }
func (o AddCounter) op() Family     { return o.Family }
func (o DeleteCounter) op() Family  { return o.Family }
func (o AddSet) op() Family         { return o.Family }
func (o DeleteSet) op() Family      { return o.Family }
func (o AddTimeout) op() Family     { return o.Family }
func (o DeleteTimeout) op() Family  { return o.Family }
func (o AddChain) op() Family       { return o.Family }
func (o SetRules) op() Family       { return o.Family }
func (o DeleteChain) op() Family    { return o.Family }
func (o AddElements) op() Family    { return o.Family }
func (o DeleteElements) op() Family { return o.Family }
func (o ForgetData) op() Family     { return o.Family }
func (o CapTimeouts) op() Family    { return o.Family }

// Transition changes one ruleset into another by two transactions; Stages gives
// those that are to be committed.
// Apply makes every packet go where it must. Cleanup, when it is not empty, then
// removes chains and sets that nothing refers to any more; they are apart because
// kernels before 6.2 may refuse (EBUSY) to delete a chain in the transaction that
// removes the last reference to it.
type Transition struct {
	Apply, Cleanup Batch
	// Forget lists the ForgetData operations of Apply. A client may be remembered
	// on an endpoint by a packet that is under way while Apply commits, so they
	// are carried out once more after it.
	Forget []ForgetData
	// Dropped are the elements that go together with their sets or tables, for which there is no operation of
	// their own. Only the Compiler of a Fork sets them.
	Dropped []DeleteElements
}

// Empty reports whether nothing has to be done.
func (t *Transition) Empty() bool { return t.Apply.Empty() && t.Cleanup.Empty() }
