" gradfix: :compiler gradfix, then :make reads the file and lists its autograd faults
if exists('current_compiler')
  finish
endif
let current_compiler = 'gradfix'
CompilerSet makeprg=gradfix\ check\ --output-format\ concise\ --quiet\ %:S
CompilerSet errorformat=%f:%l:%c:\ %m,%-G%.%#
