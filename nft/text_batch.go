package nft

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteText writes the batch as nft commands in the order of its operations, for logs
// and plans. ForgetData, for which nft has no command, is a comment. The only errors
// are those of w.
func (b Batch) WriteText(w io.Writer) error { return Printer{}.Batch(w, b) }

// Batch is Batch.WriteText with the Printer's names of interfaces.
func (p Printer) Batch(w io.Writer, b Batch) error {
	out := bufio.NewWriter(w)
	for _, op := range b.Ops {
		p.op(out, op)
	}
	return out.Flush()
}

func (p Printer) op(out *bufio.Writer, op Op) {
	switch op := op.(type) {
	case AddTable:
		fmt.Fprintln(out, "add table", op.Family, TableName)
	case DeleteTable:
		fmt.Fprintln(out, "delete table", op.Family, TableName)
	case AddCounter:
		fmt.Fprintln(out, "add counter", op.Family, TableName, op.Name)
	case DeleteCounter:
		fmt.Fprintln(out, "delete counter", op.Family, TableName, op.Name)
	case AddSet:
		fmt.Fprintln(out, "add", op.Set.keyword(), op.Family, TableName, op.Set.Name,
			"{", strings.Join(op.Set.definition(op.Family), "; ")+"; }")
	case DeleteSet:
		fmt.Fprintln(out, "delete set", op.Family, TableName, op.Name)
	case AddTimeout:
		fmt.Fprintln(out, "add ct timeout", op.Family, TableName, op.Timeout.Name(),
			"{", strings.Join(op.Timeout.definition(op.Family), "; ")+"; }")
	case DeleteTimeout:
		fmt.Fprintln(out, "delete ct timeout", op.Family, TableName, op.Name)
	case AddChain:
		fmt.Fprint(out, "add chain ", op.Family, " ", TableName, " ", op.Chain.Name)
		if op.Chain.Hook != HookNone {
			fmt.Fprint(out, " { ", op.Chain.baseText(), " }")
		}
		fmt.Fprintln(out)
	case SetRules:
		fmt.Fprintln(out, "flush chain", op.Family, TableName, op.Chain)
		for _, r := range op.Rules {
			fmt.Fprintln(out, "add rule", op.Family, TableName, op.Chain, r.Text(op.Family))
		}
	case DeleteChain:
		fmt.Fprintln(out, "delete chain", op.Family, TableName, op.Name)
	case AddElements:
		p.elements(out, "add", op.Family, &op.Set, op.Elements)
	case DeleteElements:
		keys := make([]Element, len(op.Elements))
		for i, e := range op.Elements {
			keys[i].Key = e.Key
		}
		p.elements(out, "delete", op.Family, &op.Set, keys)
	case ForgetData:
		for _, data := range op.Data {
			value := p.appendValues(nil, SplitKey(op.Set.Data, op.Family, data), data)
			fmt.Fprintf(out, "# delete from %s %s %s what is mapped to %s\n", op.Family, TableName, op.Set.Name, value)
		}
	case CapTimeouts:
		fmt.Fprintf(out, "# let no element of %s %s %s live longer than %s\n", op.Family, TableName, op.Set.Name, op.Timeout)
	default:
		panic("nft: operation of no kind")
	}
}

// elements writes one element a line; a single one on the line of the command.
func (p Printer) elements(out *bufio.Writer, verb string, f Family, s *Set, elements []Element) {
	if len(elements) == 0 {
		return
	}
	open, separator, end := "{\n\t", ",\n\t", "\n}"
	if len(elements) == 1 {
		open, end = "{ ", " }"
	}
	fmt.Fprint(out, verb, " element ", f, " ", TableName, " ", s.Name, " ", open)
	var line []byte
	for i, e := range elements {
		if i > 0 {
			out.WriteString(separator)
		}
		line = p.appendElement(line[:0], s, f, e)
		out.Write(line)
	}
	fmt.Fprintln(out, end)
}
