// Package resource has what several verbs do with objects: the arguments KIND/NAME (Targets), files (Reader), selectors,
// output forms (Printer), waiting for a condition (Until, Settle), and tables that more than one verb prints.
//
//	what, err := resource.Targets(args, settings.Namespace(env, v))
//	o, err := c.Get(ctx, what[0].Path())
package resource
