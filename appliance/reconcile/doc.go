// Package reconcile makes the kernel equal to what the store holds.
//
// A [Loop] is the one owner of our nf_tables tables. Whatever happens (a snapshot of the
// manifests, a write of a client, an address of the host, a foreign change of our tables) makes it
// take one step: store the newest snapshot, run the controllers, plan the Services that changed,
// commit one transaction, publish the status. A step always takes the newest state of everything;
// there is no queue of changes. Its work is proportional to what changed.
//
//	Inputs ──► Loop ──► planner (objects to a transition, pure) ──► applier (one transaction)
//	             │                                                        │
//	             ├──► Parts: conntrack, relay, health ports, DNS ◄────────┤ what each Service came to
//	             └──► publisher: status, problems, metrics ◄──────────────┘
//
// A [Part] follows the loop: it gets the plan of each Service, and is notified when the kernel has it.
// Adding one means writing it and naming it in Options.Parts; the loop is not touched.
//
// Errors never stop the loop. What failed is tried again, first after 500 ms, then after twice the
// time, up to 30 s; what could not be done is in the status.
package reconcile
