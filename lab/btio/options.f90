!> The command line.
module options
  use arguments, only: word
  use dumps, only: subtypes
  use dumps_mpi, only: hint_type
  use failure, only: refuse
  implicit none
  private

  type, public :: options_type
    character :: class = 'S'
    character(:), allocatable :: subtype, path, report
    character(:), allocatable :: checksum
    !< That the file must have; nothing where none was given.
    logical :: verify_only = .false., with_sync = .false.
    type(hint_type), allocatable :: hints(:)
  end type options_type

  character(*), parameter :: usage = 'usage: btio --class S|W|A|B|C --subtype ' // &
      'none|full|simple|fortran|epio [--file PATH] [--verify-only [--checksum HEX]] [--sync] ' // &
      '[--hint KEY=VALUE]... [--report PATH]'

  public :: read_options

contains

  !> What was asked for. Ends the run where that is not allowed.
  function read_options() result(asked)
    type(options_type) :: asked
    character(:), allocatable :: name, value
    type(hint_type) :: hint
    integer :: i, equals

    asked%subtype = 'none'
    asked%path = './btio.out'
    asked%report = ''
    asked%checksum = ''
    allocate (asked%hints(0))
    i = 1
    do while (i <= command_argument_count())
      name = word(i)
      i = i + 1
      select case (name)
      case ('--verify-only')
        asked%verify_only = .true.
        cycle
      case ('--sync')
        asked%with_sync = .true.
        cycle
      end select
      if (i > command_argument_count()) &
          call refuse(name // ': unknown, or a value is missing; ' // usage)
      value = word(i)
      i = i + 1
      select case (name)
      case ('--class')
        if (len(value) /= 1 .or. verify(value, 'SWABC') /= 0) &
            call refuse('--class ' // value // ': allowed are S, W, A, B and C')
        asked%class = value(1:1)
      case ('--subtype')
        if (all(subtypes /= value)) call refuse('--subtype ' // value // &
            ': allowed are none, full, simple, fortran and epio')
        asked%subtype = value
      case ('--file')
        ! OMPIO of Open MPI 4.1 opens no file whose path has no folder.
        asked%path = value
        if (index(value, '/') == 0) asked%path = './' // value
      case ('--report')
        asked%report = value
      case ('--checksum')
        asked%checksum = value
      case ('--hint')
        equals = index(value, '=')
        if (equals < 2) call refuse('--hint ' // value // ': must be KEY=VALUE')
        hint%key = value(:equals - 1)
        hint%value = value(equals + 1:)
        asked%hints = [asked%hints, hint]
      case default
        call refuse(name // ': unknown; ' // usage)
      end select
    end do
    if (asked%verify_only .and. asked%subtype == 'none') &
        call refuse('--verify-only needs the --subtype that the file was written with')
    if (asked%checksum /= '' .and. .not. asked%verify_only) &
        call refuse('--checksum is of a file that was written before: it needs --verify-only')
  end function read_options

end module options
